"""TOML in and out of configuration dataclasses.

A table per nested dataclass, a key per field. None is a key that is not there.
"""

import difflib
import json
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sshsdp_fsdp_runtime.trainer.errors import InputError

Config = TypeVar("Config")


def read_config(path: Path, kind: type[Config]) -> Config:
    """The `kind` that the TOML file at `path` describes; absent keys take their default.

    Raises:
        InputError: a missing or malformed file; an unknown key, with the nearest known one; a
            value of the wrong type.
    """
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError as error:
        raise InputError(f"expected a TOML file, got {path}, which does not exist") from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"expected a TOML file, got {path}: {error}") from error
    try:
        return _from_table(table, kind, "", tuple(_keys(kind)))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def format_config(config: Any) -> str:
    """`config` as TOML text that `read_config` reads back equal."""
    return "\n".join(_lines(config, "")) + "\n"


def _from_table(
    table: Mapping[str, Any], kind: type[Config], prefix: str, known: tuple[str, ...]
) -> Config:
    hints = get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise InputError(_unknown(prefix + key, known))
    values = {}
    for key, value in table.items():
        hint, path = hints[key], prefix + key
        if isinstance(hint, type) and is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise InputError(f"expected a table [{path}], got {path} = {value!r}")
            values[key] = _from_table(value, hint, f"{path}.", known)
        else:
            values[key] = _convert(value, hint, path)
    return kind(**values)


def _unknown(key: str, known: tuple[str, ...]) -> str:
    # The same name in another table is the likelier slip than a similar spelling.
    last = key.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    near = same or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"expected a known key, got {key!r}; the nearest known key is {near[0]!r}"


def _keys(kind: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _keys(hint, f"{prefix}{name}.")
        else:
            yield prefix + name


def _convert(value: Any, hint: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert(value, next(each for each in arguments if each is not type(None)), path)
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            return tuple(_convert(each, arguments[0], path) for each in value)
        if len(value) == len(arguments):
            pairs = zip(value, arguments, strict=True)
            return tuple(_convert(each, argument, path) for each, argument in pairs)
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    if type(value) is hint:
        return value
    raise InputError(f"expected {path} as {_describe(hint)}, got {value!r}")


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(each) for each in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list ({hint})"
    return {Path: "a string (a path; . is the current folder)", str: "a string"}.get(
        hint, getattr(hint, "__name__", "")
    )


def _lines(config: Any, prefix: str) -> Iterator[str]:
    tables = []
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            tables.append((each.name, value))
        elif value is not None:
            yield f"{each.name} = {_format(value)}"
    for name, value in tables:
        yield f"\n[{prefix}{name}]"
        yield from _lines(value, f"{prefix}{name}.")


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_format(each) for each in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, Path)):
        # A JSON string is a TOML basic string, except that TOML wants DEL escaped too.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
