"""The modules that dotted names imply, in the order in which torch would register them."""

from collections.abc import Iterator, Sequence
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

    def add(self, parts: Sequence[str], value: Value) -> None:
        """Put `value` where the name made of `parts` says.

        Raises:
            InputError: the name is taken, by a value or by a module.
        """
        node = self.module(parts)
        last = parts[-1]
        if last in node.values or last in node.children:
            raise InputError(_taken(parts, node.full(last)))
        node.values[last] = value

    def module(self, parts: Sequence[str]) -> "NameTree[Value]":
        """The module that owns the name made of `parts`, made where it is missing.

        Raises:
            InputError: a value has the name of a module around it.
        """
        node = self
        for part in parts[:-1]:
            child = node.children.get(part)
            if child is None:
                if part in node.values:
                    raise InputError(_taken(parts, node.full(part)))
                child = node.children[part] = NameTree(node.full(part))
            node = child
        return node

    @property
    def is_list(self) -> bool:
        """Whether it looks like an ``nn.ModuleList``."""
        return bool(self.children) and not self.values and all(map(str.isdecimal, self.children))

    def modules(self) -> Iterator["NameTree[Value]"]:
        """This module and all inside, outer ones first."""
        yield self
        inside = self.children.values()
        for child in sorted(inside, key=_index) if self.is_list else inside:
            yield from child.modules()

    def full(self, name: str) -> str:
        """Dotted name of something inside."""
        return f"{self.name}.{name}" if self.name else name


def _index(node: "NameTree[Value]") -> int:
    return int(node.name.rpartition(".")[2])


def _taken(parts: Sequence[str], name: str) -> str:
    return f"expected every name once, got {'.'.join(parts)!r} where {name!r} is taken already"
