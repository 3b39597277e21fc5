"""Sources: the files that a corpus is made of, in the order of their names."""

import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sshsdp_fsdp_runtime.trainer.errors import InputError

# Tests are half of a standard library and repeat themselves; the rest is not its own text.
_LEFT_OUT = frozenset(
    {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}
)
_TOKEN_DTYPES = ("uint8", "uint16", "uint32")
_PROBE_BYTES = 8192


class Kind(StrEnum):
    """How a file is read."""

    TEXT = "text"
    JSONL = "jsonl"
    NPY = "npy"
    BIN = "bin"

    @property
    def holds_tokens(self) -> bool:
        """Whether the file holds token ids rather than text."""
        return self in (Kind.NPY, Kind.BIN)


@dataclass(frozen=True, slots=True)
class Source:
    """One file and how to read it."""

    path: Path
    kind: Kind


def standard_library() -> tuple[Source, ...]:
    """The .py files of the running interpreter's standard library, tests left out.

    Raises:
        InputError: an installation without them.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = [
        path for path in _walk(root, _LEFT_OUT) if path.suffix == ".py" and path.stat().st_size
    ]
    if not paths:
        raise InputError(
            f"expected .py files in the standard library {root}, got none; give --data"
        )
    return tuple(Source(path, Kind.TEXT) for path in paths)


def find_sources(paths: Sequence[Path]) -> tuple[Source, ...]:
    """The files named by `paths`, and those inside the folders among them, sorted by name.

    Inside folders hidden files are left out, and so are files that are neither text nor tokens.

    Raises:
        InputError: a path that does not exist, a folder or file without content, a named file that
            is not text, or text and token arrays together.
    """
    sources = [source for path in paths for source in _expand(path)]
    tokens = [source.kind.holds_tokens for source in sources]
    if any(tokens) and not all(tokens):
        text, array = sources[tokens.index(False)].path, sources[tokens.index(True)].path
        raise InputError(
            f"expected either text or token arrays as data, got both ({text}, {array});"
            " name the files of one kind"
        )
    return tuple(sources)


def read_texts(source: Source) -> Iterator[bytes]:
    """The documents of a text or JSONL file, as UTF-8 bytes.

    Raises:
        InputError: a JSONL line without a string under "text", with the line number.
    """
    if source.kind is Kind.TEXT:
        yield source.path.read_bytes()
        return
    with source.path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _text_field(line, f"{source.path}:{number}").encode(errors="replace")


def read_tokens(source: Source, token_dtype: str) -> NDArray[np.unsignedinteger]:
    """The token ids of a .npy or .bin file: 1-D, memory-mapped.

    Args:
        source: the file.
        token_dtype: element type of .bin files.

    Raises:
        InputError: another shape or element type, or a size that is no multiple of the element's.
    """
    path = source.path
    if source.kind is Kind.BIN:
        dtype = np.dtype(token_dtype).newbyteorder("<")
        if path.stat().st_size % dtype.itemsize:
            raise InputError(
                f"expected {path} as {token_dtype} tokens, got {path.stat().st_size} bytes, which"
                f" {dtype.itemsize} does not divide; set corpus.token_dtype"
            )
        return np.memmap(path, dtype=dtype, mode="r")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"expected {path} as a .npy array, got: {error}") from error
    if array.ndim != 1 or array.dtype.name not in _TOKEN_DTYPES:
        raise InputError(
            f"expected {path} as a 1-D array of {', '.join(_TOKEN_DTYPES)}, got {array.ndim}-D"
            f" {array.dtype.name}; save it as array.reshape(-1).astype('uint16')"
        )
    return array  # type: ignore[no-any-return]


def _expand(path: Path) -> list[Source]:
    if not path.exists():
        raise InputError(f"expected a file or folder as data, got {path}, which does not exist")
    if path.is_dir():
        found = [each for each in _walk(path) if each.stat().st_size and not _is_binary(each)]
        if not found:
            raise InputError(
                f"expected text, JSONL, .npy or .bin files with content in {path}, got none"
            )
        return [Source(each, _kind(each)) for each in found]
    if not path.stat().st_size:
        raise InputError(f"expected data in {path}, got an empty file")
    if _is_binary(path):
        raise InputError(
            f"expected {path} as text, got bytes with NUL among them; token arrays end in .npy or"
            " .bin"
        )
    return [Source(path, _kind(path))]


def _walk(folder: Path, left_out: frozenset[str] = frozenset()) -> list[Path]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in left_out and name[0] != "."]
        found += [Path(root, name) for name in files if name[0] != "."]
    return sorted((path for path in found if path.is_file()), key=Path.as_posix)


def _kind(path: Path) -> Kind:
    suffix = path.suffix.lower().removeprefix(".")
    return Kind(suffix) if suffix in ("jsonl", "npy", "bin") else Kind.TEXT


def _is_binary(path: Path) -> bool:
    if _kind(path).holds_tokens:
        return False
    with path.open("rb") as file:
        return b"\0" in file.read(_PROBE_BYTES)


def _text_field(line: bytes, where: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'expected a JSON object with a string under "text" at {where}, got'
            f" {line[:60].decode(errors='replace').strip()!r}"
        ) from error
    if not isinstance(text, str):
        raise InputError(f'expected a string under "text" at {where}, got {type(text).__name__}')
    return text
