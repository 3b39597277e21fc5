"""Dtypes by the names that people write."""

import torch

from sshsdp_fsdp_runtime.trainer.errors import InputError

_SHORT = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}


def dtype_of(name: object, where: str) -> torch.dtype:
    """The dtype that torch calls `name`, or the usual abbreviation of one.

    Args:
        name: for example "bfloat16" or "bf16".
        where: what is read, for the error.

    Raises:
        InputError: no dtype is called so.
    """
    found = getattr(torch, _SHORT.get(name, name), None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise InputError(
            f"{where}: expected the name of a dtype, got {name!r}; use 'bfloat16' or 'float32'"
        )
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """What `dtype_of` understands."""
    return str(dtype).removeprefix("torch.")
