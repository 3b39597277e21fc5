"""A model as a TOML file of names and shapes, for planning without the model's code.

.. code-block:: toml

    dtype = "bfloat16"                 # of what names no other; float32 if absent

    [sizes]                            # numbers with a name, for shapes and repeats
    layers = 48
    width = 2048

    [parameters]                       # in the order of registration
    "embed.weight" = [151936, "width"]
    "layers.{layers}.experts.{128}.up.weight" = [768, "width"]
    "layers.{layers}.q.weight" = ["32 * 128", "width"]
    "layers.{0,5:7}.gate.weight" = { shape = [128, "width"], dtype = "float32", frozen = true }
    "head.weight" = { tied = "embed.weight" }

    [buffers]                          # replicated; the same notation, without `frozen`
    "rope.cos" = [4096, 64]
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from sshsdp_fsdp_runtime.plan import ModelSpec, ParameterSpec
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.planning.dtypes import dtype_of
from sshsdp_fsdp_runtime.trainer.planning.name_tree import NameTree
from sshsdp_fsdp_runtime.trainer.planning.repeats import split_name

_KEYS = ("dtype", "sizes", "parameters", "buffers")


@dataclass(slots=True)
class _Entry:
    shape: tuple[int, ...]
    dtype: torch.dtype
    frozen: bool
    buffer: bool
    also: tuple[str, ...] = ()  # names tied to this one


def read_shape_file(path: Path) -> ModelSpec:
    """The model that the TOML file at `path` lists.

    Raises:
        InputError: the file is missing or malformed; the text names the entry.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"expected a TOML file, got {path}, which does not exist") from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"expected a TOML file, got {path}: {error}") from error
    try:
        return parse_shapes(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_shapes(table: Mapping[str, Any]) -> ModelSpec:
    """The model that a parsed file lists.

    Raises:
        InputError: an unknown key, a bad shape, a name twice, a tie to nothing.
    """
    for key in table:
        if key not in _KEYS:
            raise InputError(f"expected the keys {', '.join(_KEYS)}, got {key!r}")
    sizes = _sizes(_table(table, "sizes"))
    default = dtype_of(table.get("dtype", "float32"), "dtype")
    tree: NameTree[_Entry] = NameTree()
    ties: list[tuple[str, str]] = []
    for pattern, value in _table(table, "parameters").items():
        if isinstance(value, Mapping) and "tied" in value:
            ties.append((pattern, _tied(pattern, value)))
        else:
            _add(tree, pattern, _entry(pattern, value, default, sizes, buffer=False), sizes)
    for pattern, value in _table(table, "buffers").items():
        _add(tree, pattern, _entry(pattern, value, default, sizes, buffer=True), sizes)
    for pattern, target in ties:
        _tie(tree, pattern, target)
    return _spec(tree)


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise InputError(f"expected a table [{key}], got {key} = {value!r}")
    return value


def _sizes(table: Mapping[str, Any]) -> dict[str, int]:
    for name, value in table.items():
        if type(value) is not int or value < 1:
            raise InputError(f"expected sizes.{name} as a positive integer, got {value!r}")
    return dict(table)


def _entry(
    pattern: str, value: Any, default: torch.dtype, sizes: Mapping[str, int], *, buffer: bool
) -> _Entry:
    fields = value if isinstance(value, Mapping) else {"shape": value}
    known = ("shape", "dtype") if buffer else ("shape", "dtype", "frozen")
    for key in fields:
        if key not in known:
            hint = "; quote names with dots" if isinstance(fields[key], list | Mapping) else ""
            raise InputError(f"{pattern!r}: expected {', '.join(known)}, got {key!r}{hint}")
    shape, frozen = fields.get("shape"), fields.get("frozen", False)
    if not isinstance(shape, list):
        raise InputError(f"{pattern!r}: expected a shape as a list, got {shape!r}")
    if not isinstance(frozen, bool):
        raise InputError(f"{pattern!r}: expected frozen = true or false, got {frozen!r}")
    dtype = dtype_of(fields["dtype"], repr(pattern)) if "dtype" in fields else default
    return _Entry(tuple(_extent(pattern, n, sizes) for n in shape), dtype, frozen, buffer)


def _extent(pattern: str, value: Any, sizes: Mapping[str, int]) -> int:
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, str):
        factors = [factor.strip() for factor in value.split("*")]
        if all(factor in sizes or factor.isdecimal() for factor in factors):
            return prod(sizes[f] if f in sizes else int(f) for f in factors)
    known = ", ".join(sizes) or "none"
    raise InputError(
        f"{pattern!r}: expected a shape of integers and sizes (known: {known}) or products of them"
        f" such as '2 * width', got {value!r}"
    )


def _tied(pattern: str, value: Mapping[str, Any]) -> str:
    if len(value) > 1 or not isinstance(value["tied"], str):
        raise InputError(f"{pattern!r}: expected {{ tied = 'name' }} and nothing else, got {value}")
    return value["tied"]


def _add(tree: NameTree[_Entry], pattern: str, entry: _Entry, sizes: Mapping[str, int]) -> None:
    tree.add(split_name(pattern, sizes), entry)


def _tie(tree: NameTree[_Entry], pattern: str, target: str) -> None:
    """Give the parameter `target` the further name `pattern`; neither may have repeats."""
    node = tree
    *path, last = target.split(".")
    for part in path:
        node = node.children.get(part, NameTree())
    entry = node.values.get(last)
    if entry is None or entry.buffer:
        raise InputError(
            f"{pattern!r}: expected tied = the name of a parameter of the file, got {target!r};"
            " names with braces can't be tied"
        )
    choices = split_name(pattern, {})
    if any(len(names) > 1 for names in choices):
        raise InputError(f"{pattern!r}: expected one name that is tied, got several")
    parts = [names[0] for names in choices]
    # Entries are shared by all names of a pattern, a tie belongs to one of them.
    node.values[last] = _Entry(
        entry.shape, entry.dtype, entry.frozen, False, (*entry.also, ".".join(parts))
    )
    owner = tree
    for part in parts[:-1]:
        owner = owner.child(part)
    if parts[-1] in owner.values or parts[-1] in owner.children:
        raise InputError(f"{pattern!r}: expected every name once, got it again")


def _spec(tree: NameTree[_Entry]) -> ModelSpec:
    modules = tree.modules()
    return ModelSpec(
        parameters=tuple(_parameters(modules)),
        modules=tuple(module.name for module in modules if module.name),
        lists=tuple(module.name for module in modules if module.name and module.is_list),
        buffers=tuple(
            (module.full(name), entry.shape, entry.dtype)
            for module in modules
            for name, entry in module.values.items()
            if entry.buffer
        ),
    )


def _parameters(modules: list[NameTree[_Entry]]) -> Iterator[ParameterSpec]:
    for module in modules:
        for name, entry in module.values.items():
            if not entry.buffer:
                full = module.full(name)
                yield ParameterSpec(
                    full, (full, *entry.also), entry.shape, entry.dtype, not entry.frozen
                )
