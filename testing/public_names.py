"""Writes down what users may rely on: each public name of the packages, with its signature.

    python -m testing.public_names     accepts the present ones

Public is what a package lists in ``__all__``, and modules from which the READMEs and pages import.
"""

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/*.md")]
RECORD = ROOT / "integration" / "public_names.txt"
_PREFIX = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)")  # where a type is defined is no promise
_OPTIONAL = re.compile(r"\bOptional\[(\w+(?:\[[^\[\]]*\])?)\]")  # as older Pythons show a union
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def faces() -> list[str]:
    """Names of the modules that users import."""
    found = {path.name for path in ROOT.glob("packages/*/src/sshsdp_*")}
    for text in TEXTS:
        found |= set(
            re.findall(r"^(?:from|import) (sshsdp_[\w.]+)", text.read_text(), re.MULTILINE)
        )
    return sorted(found)


def lines() -> list[str]:
    """One per name, in order."""
    modules = {name: import_module(name) for name in faces()}
    public = {id(getattr(module, name)) for module in modules.values() for name in module.__all__}
    found = {
        line
        for face, module in modules.items()
        for name in module.__all__
        for line in _of(f"{face}.{name}", getattr(module, name), public)
    }
    return sorted(found)


def _of(name: str, value: Any, public: set[int]) -> Iterator[str]:
    if isinstance(value, ModuleType):
        for own, function in vars(value).items():
            is_own = inspect.isfunction(function) and function.__module__ == value.__name__
            if is_own and not own.startswith("_"):
                yield _call(f"{name}.{own}", function)
    elif inspect.isclass(value):
        yield from _of_class(name, value, public)
    elif callable(value) and inspect.isfunction(inspect.unwrap(value)):
        yield _call(name, value)
    else:
        yield f"{name}: {type(value).__name__}"


def _of_class(name: str, kind: type, public: set[int]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    if issubclass(kind, enum.Enum):
        yield f"{name}({bases}): {', '.join(str(member.name) for member in kind)}"
        return
    own = [base for base in kind.__mro__ if base is kind or _is_hidden(base, public)]
    suffix = f" <- {bases}" if bases else ""
    made = any("__init__" in vars(base) for base in own) and not getattr(
        kind, "_is_protocol", False
    )
    yield (_call(name, kind) if made else name) + suffix
    fields = getattr(kind, "__dataclass_fields__", {})
    for base in own:
        for attribute, value in vars(base).items():
            if not attribute.startswith("_") and attribute not in fields:
                yield from _of_attribute(f"{name}.{attribute}", value)


def _is_hidden(base: type, public: set[int]) -> bool:
    """Whether a base class is ours and has no entry of its own."""
    return base.__module__.startswith("sshsdp_") and id(base) not in public


def _of_attribute(name: str, value: Any) -> Iterator[str]:
    function = getattr(value, "__func__", value)
    if isinstance(value, property | cached_property):
        yield f"{name}: property"
    elif inspect.isfunction(function):
        yield _call(name, function)
    else:
        yield f"{name} = {_ADDRESS.sub('', repr(value))}"


def _call(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=_unannotated(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    text = _PREFIX.sub("", str(signature.replace(parameters=plain)))
    text = _OPTIONAL.sub(r"\1 | None", text)
    return _ADDRESS.sub("", name + text)


def _unannotated(annotation: Any) -> Any:
    """Without what a command line library attaches to it."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def main() -> None:
    """Accept."""
    RECORD.write_text("\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
