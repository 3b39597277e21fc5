"""Files of the safetensors format: where the bytes of every tensor are.

A file is the length of its header (8 bytes, little endian), the header (JSON: name -> dtype, shape
and [begin, end) relative to the data) and the data, row-major, one tensor after another without
gaps (github.com/huggingface/safetensors, "Format"). So the file of a model is known before any
value is, and whoever holds a flat range of a tensor can write it to its place.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError

_LENGTH = struct.Struct("<Q")
_ALIGN = 8  # of the data, so that mapped tensors of every dtype are aligned
_LONGEST_HEADER = 100_000_000  # bytes; the limit of the format's own library

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)
_NAMES = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        dtype: of the stored elements.
        shape: row-major.
        offset: of its first byte, relative to the file.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Length of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One file.

    Attributes:
        tensors: by name.
        metadata: text by text.
        header: the bytes before the data.
        nbytes: length of the file.
    """

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    header: bytes
    nbytes: int

    @classmethod
    def lay_out(
        cls,
        tensors: Sequence[tuple[str, torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
    ) -> "SafetensorsFile":
        """The file of these tensors; those with the widest elements come first, to be aligned.

        Raises:
            CheckpointError: a dtype that the format has not.
        """
        rows: dict[str, Any] = {"__metadata__": dict(metadata)}
        places, end = {}, 0
        for name, dtype, shape in sorted(tensors, key=lambda row: -row[1].itemsize):
            if dtype not in _NAMES:
                raise CheckpointError(
                    f"expected a dtype that safetensors files have, got {dtype} for {name!r}; "
                    "export with dtype="
                )
            stored = StoredTensor(dtype, shape, end)
            end += stored.nbytes
            places[name] = stored
            rows[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [stored.offset, end],
            }
        text = json.dumps(rows, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + _LENGTH.size) % _ALIGN)
        header = _LENGTH.pack(len(text)) + text
        moved = {
            name: StoredTensor(stored.dtype, stored.shape, len(header) + stored.offset)
            for name, stored in places.items()
        }
        return cls(moved, dict(metadata), header, len(header) + end)

    @classmethod
    def read(cls, path: Path) -> "SafetensorsFile":
        """The header of an existing file.

        Raises:
            CheckpointError: it is not there, not of the format, cut off, or its header places a
                tensor where the format doesn't allow it; the text names file and tensor.
        """
        try:
            with path.open("rb") as file:
                (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
                if length > _LONGEST_HEADER:
                    raise ValueError(f"a header of {length} bytes")
                text = file.read(length)
                rows = json.loads(text)
                found = file.seek(0, 2)
            if not isinstance(rows, dict):
                raise ValueError("a header that is no JSON object")
        except (OSError, struct.error, ValueError) as error:
            raise CheckpointError(
                f"expected a file of the safetensors format, got {path}: "
                f"{type(error).__name__}: {error}; check the path, or copy the file again"
            ) from error
        metadata = rows.pop("__metadata__", {})
        start = _LENGTH.size + length
        tensors = {name: _place(path, name, row, start) for name, row in rows.items()}
        end = _end_of_data(path, tensors, start)
        if end > found:
            raise CheckpointError(
                f"expected {path} of {end} bytes, got {found}: the file is cut off; copy it again"
            )
        if end < found:
            raise CheckpointError(
                f"expected {path} of {end} bytes, got {found}: the last {found - end} belong to no "
                "tensor; copy it again"
            )
        return cls(tensors, metadata, _LENGTH.pack(length) + text, found)


def _place(path: Path, name: str, row: Any, start: int) -> StoredTensor:
    """What the header says about one tensor; data begins at `start` of the file."""
    try:
        dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r}, which this library does not read")
        if not _sizes(shape):
            raise ValueError(f"shape {shape!r}")
        stored = StoredTensor(DTYPES[dtype], tuple(shape), start)
        if not _sizes(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != stored.nbytes:
            raise ValueError(f"data_offsets {offsets!r} for {stored.nbytes} bytes")
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"expected a place of the safetensors format for {name!r} in {path}, got "
            f"{type(error).__name__}: {error}; write the file again"
        ) from error
    return replace(stored, offset=start + offsets[0])


def _sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def _end_of_data(path: Path, tensors: Mapping[str, StoredTensor], start: int) -> int:
    """Where the data of the file ends, which the tensors fill one after another."""
    end = start
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if stored.offset != end:
            fault = "overlaps the one before" if stored.offset < end else "leaves a hole before it"
            raise CheckpointError(
                f"expected tensors without gaps in {path}, got {name!r} at byte "
                f"{stored.offset - start} of the data, where {end - start} was free: it {fault}; "
                "write the file again"
            )
        end += stored.nbytes
    return end
