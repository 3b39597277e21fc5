"""Launches: kernels with their arguments, prepared once and run any number of times."""

# mypy: disable-error-code="import-untyped,import-not-found"

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

LIMIT = (1 << 31) - (1 << 15)  # the last tile may reach beyond


class MissingTritonError(RuntimeError):
    """Tensors on a GPU, and no compiler for its kernels."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel, and all that it is called with.

    Attributes:
        kernel: of Triton.
        programs: how many of it run.
        arguments: by name.
        constants: by name; each combination is compiled once.
        device: where it runs.
        warps: per program.
        kept: tensors that arguments know by their addresses only.
    """

    kernel: Any
    programs: int
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    device: torch.device
    warps: int
    kept: tuple[Tensor, ...] = ()

    def run(self, **changes: int) -> None:
        """Launch it on the current stream, some arguments replaced."""
        # Nothing here adds to a product; said because Triton warns where its default is taken.
        arguments = {**self.arguments, **changes}
        options = {"num_warps": self.warps, "enable_fp_fusion": False}
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            self.kernel[(self.programs,)](**arguments, **self.constants, **options)


def check_device(*tensors: Tensor) -> torch.device:
    """The one device of all tensors, if kernels can run there.

    Raises:
        ValueError: for several devices, or one that isn't CUDA. The CPU will do while Triton
            interprets (TRITON_INTERPRET=1).
        MissingTritonError: if Triton isn't installed.
    """
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"expected all tensors on {device}, got one on {tensor.device}")
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"expected tensors on a CUDA device, got {device}")
    if find_spec("triton") is None:
        raise MissingTritonError(
            f"expected Triton to compile kernels for tensors on {device}, found none; install "
            f"sshsdp-mxfp[cuda], or move them with .cpu()"
        )
    if device.type == "cpu" and not interpreted():
        raise ValueError(f"expected tensors on a CUDA device, got {device}")
    return device


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU, which it decides when it is imported."""
    from triton import knobs  # only where it is installed

    return bool(knobs.runtime.interpret)


def check_size(**sizes: int) -> None:
    """Refuse what kernels count in 32 bits, by name; offsets have 64."""
    for name, size in sizes.items():
        if size >= LIMIT:
            raise ValueError(f"expected {name} below 2^31 - 2^15, got {size}; cut the tensor")


def table(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """A table of jobs on the device, int64, without waiting for it.

    Raises:
        RuntimeError: while a graph is captured, which would replay a copy from memory that is gone.
    """
    host = torch.tensor(rows, dtype=torch.int64)
    if device.type == "cpu":
        return host
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "expected batches that were prepared before a graph is captured, got a new one; make "
            "it outside and only run it inside"
        )
    return host.pin_memory().to(device, non_blocking=True)
