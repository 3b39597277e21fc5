"""Registered memory that other ranks can address."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from sshsdp_zerosm.errors import TransportError

ALIGNMENT = 4096
Memory: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def local_memory(nbytes: int) -> Memory:
    """Zeroed whole pages, at least `nbytes`, of this process; not touched yet."""
    size = padded(nbytes)
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


class Arena:
    """One named piece of memory per rank, all of the same size.

    Attributes:
        name: the same on all ranks.
        nbytes: bytes of each rank's memory, as asked for; it starts zeroed at a page boundary.
        shared: the memory of all ranks of a node is one and the same.
        created_bytes: whole pages of it that this rank has made.
    """

    created_bytes: int = 0

    def __init__(
        self, name: str, nbytes: int, *, shared: bool, rank: int, memories: Sequence[Memory | None]
    ) -> None:
        self.name = name
        self.nbytes = nbytes
        self.shared = shared
        self._rank = rank
        self._memories = memories

    def tensor(self, rank: int | None = None) -> torch.Tensor:
        """The memory of `rank` (default: own) as a 1-D uint8 tensor of `nbytes` elements.

        Each call gives a new tensor over the same bytes with a version counter of its own. A live
        tensor keeps the memory alive, even after the transport was closed.
        """
        at = self._rank if rank is None else rank
        if not self._memories:
            raise TransportError(
                f"arena {self.name!r} is closed: use tensors that you took before close(), or "
                f"connect again"
            )
        if not 0 <= at < len(self._memories):
            raise TransportError(
                f"arena {self.name!r}: expected a rank below {len(self._memories)} whose memory "
                f"exists, got {at}"
            )
        memory = self._memories[at]
        if memory is None:
            raise TransportError(
                f"arena {self.name!r}: expected a rank whose memory rank {self._rank} addresses, "
                f"got rank {at} of another node: put to it, and let it put"
            )
        # Not an inference tensor, wherever this is called: programs write through it later.
        with torch.inference_mode(False):
            if self.nbytes == 0:  # numpy's empty arrays have strides that views refuse
                return torch.empty(0, dtype=torch.uint8)
            return torch.from_numpy(memory[: self.nbytes])

    def release(self) -> None:
        """Drop this object's hold on the memory."""
        self._memories = ()
