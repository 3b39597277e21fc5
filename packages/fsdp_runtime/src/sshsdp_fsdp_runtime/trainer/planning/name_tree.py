"""The modules that dotted names imply, in the order in which torch would register them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sshsdp_fsdp_runtime.trainer.errors import InputError

Value = TypeVar("Value")


@dataclass(slots=True)
class NameTree(Generic[Value]):
    """One module: the values it owns and the modules inside, in order of appearance.

    Modules whose names are all numbers are the elements of a list and come in numeric order,
    whichever pattern named them first.
    """

    name: str = ""
    values: dict[str, Value] = field(default_factory=dict)
    children: dict[str, "NameTree[Value]"] = field(default_factory=dict)

    def add(self, choices: Sequence[Sequence[str]], value: Value) -> None:
        """Put `value` under all names that take one of the choices for each of their parts.

        Raises:
            InputError: a name is taken, by a value or by a module.
        """
        names, inner = choices[0], choices[1:]
        for name in names:
            if inner:
                self.child(name).add(inner, value)
            elif name in self.values or name in self.children:
                raise InputError(self._taken(name))
            else:
                self.values[name] = value

    def child(self, name: str) -> "NameTree[Value]":
        """The module called `name` inside this one, made where it is missing.

        Raises:
            InputError: a value is called so.
        """
        child = self.children.get(name)
        if child is None:
            if name in self.values:
                raise InputError(
                    f"expected every name once, got {self.full(name)!r} as a module, which is a"
                    " tensor"
                )
            child = self.children[name] = NameTree(self.full(name))
        return child

    @property
    def is_list(self) -> bool:
        """Whether it looks like an ``nn.ModuleList``."""
        return bool(self.children) and not self.values and all(map(str.isdecimal, self.children))

    def modules(self) -> list["NameTree[Value]"]:
        """This module and all inside, outer ones first."""
        found: list[NameTree[Value]] = []
        waiting = [self]
        while waiting:
            module = waiting.pop()
            found.append(module)
            inside = module.children.values()
            ordered = sorted(inside, key=_index) if module.is_list else list(inside)
            waiting += reversed(ordered)
        return found

    def full(self, name: str) -> str:
        """Dotted name of something inside."""
        return f"{self.name}.{name}" if self.name else name

    def _taken(self, name: str) -> str:
        how = "again" if name in self.values else "as a tensor, which is a module"
        return f"expected every name once, got {self.full(name)!r} {how}"


def _index(node: "NameTree[Value]") -> int:
    return int(node.name.rpartition(".")[2])
