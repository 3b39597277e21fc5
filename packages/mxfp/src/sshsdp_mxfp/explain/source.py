"""Where the tensor comes from: a file, mapped rather than read, or a seed."""

import difflib
import math
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from sshsdp_mxfp.caster import FLOATS
from sshsdp_mxfp.explain.errors import UserError, missing
from sshsdp_mxfp.explain.random import Kind, draw

SUFFIXES = (".safetensors", ".npy")
_SHOWN = 12  # names in an error


def from_seed(kind: str, shape: str, seed: int) -> Tensor:
    """A random tensor; see `draw`.

    Args:
        kind: "normal", "rows" or "outliers".
        shape: as in 1024x1024.
        seed: of the generator.

    Raises:
        UserError: for another kind or shape.
    """
    for known in get_args(Kind):
        if kind == known:
            break
    else:
        raise UserError(
            f"expected --random of {', '.join(get_args(Kind))}, got {kind!r}; sizes go to --shape"
        )
    try:
        sizes = tuple(map(int, shape.split("x")))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise UserError(f"expected a --shape of positive sizes as in 1024x1024, got {shape!r}")
    return draw(known, sizes, seed)


def from_file(path: Path, name: str | None) -> tuple[str, Tensor]:
    """A tensor of a file and what to call it.

    Args:
        path: a .safetensors or .npy file.
        name: of the tensor; None where the file holds one tensor of floats.

    Raises:
        UserError: for another file, or a tensor that can't be quantized.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(f"expected a file of {' or '.join(SUFFIXES)}, got {path}")
    if not path.is_file():
        raise UserError(f"expected a file, got {path}, which is none")
    if path.suffix == ".npy":
        if name is not None:
            raise UserError("expected no --tensor for a .npy file, which holds one; leave it out")
        return path.name, _checked(_npy(path), path.name)
    return _safetensors(path, name)


def _npy(path: Path) -> Tensor:
    try:
        import numpy as np
    except ImportError as error:
        raise missing("numpy", "to read .npy files") from error
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return torch.from_numpy(array)
    except (EOFError, OSError, TypeError, ValueError) as error:
        raise UserError(f"expected an array of floats in {path}, got: {error}") from error


def _safetensors(path: Path, name: str | None) -> tuple[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing("safetensors", "to read .safetensors files") from error
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            chosen = _only(path, names) if name is None else _known(path, names, name)
            return f"{path.name}: {chosen}", _checked(file.get_tensor(chosen), chosen)
    except (OSError, SafetensorError) as error:
        raise UserError(f"expected tensors in {path}, got: {error}") from error


def _only(path: Path, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    raise UserError(
        f"expected --tensor NAME for {path}, which holds {len(names)} tensors: {_list(names)}"
    )


def _known(path: Path, names: list[str], name: str) -> str:
    if name in names:
        return name
    close = [known for known in names if name in known]
    close = close or difflib.get_close_matches(name, names, _SHOWN, 0.5) or names
    raise UserError(f"expected a tensor of {path}, such as {_list(close)}; got {name!r}")


def _list(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _checked(x: Tensor, name: str) -> Tensor:
    if x.dtype not in FLOATS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise UserError(f"expected {name} to be of {known}, got {x.dtype}")
    if not x.ndim or not math.prod(x.shape):
        raise UserError(f"expected {name} to have elements in rows, got shape {list(x.shape)}")
    return x
