"""Where the bytes of a tree come from."""

from dataclasses import dataclass
from typing import Protocol

import torch


class Allocator(Protocol):
    """A source of raw bytes: torch, pinned memory, a registered arena of a transport."""

    def allocate(self, nbytes: int, name: str) -> torch.Tensor:
        """Hand out memory.

        Args:
            nbytes: how many bytes, 0 or more.
            name: the path of the root that asks, for messages and accounting.

        Returns:
            1-D, ``uint8``, contiguous, at least ``nbytes`` long, aligned to 64 bytes; contents are
            undefined.
        """
        ...

    def release(self, storage: torch.Tensor) -> None:
        """Take back what ``allocate`` returned; the tree holds no view of it any more."""
        ...


@dataclass(frozen=True, slots=True)
class TorchAllocator:
    """Memory from torch's own allocator, which aligns to 64 bytes or more.

    Args:
        device: where the bytes lie.
    """

    device: torch.device | str = "cpu"

    def allocate(self, nbytes: int, name: str) -> torch.Tensor:  # noqa: ARG002 - see Allocator
        """Uninitialized bytes on the device."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def release(self, storage: torch.Tensor) -> None:
        """Nothing to do: torch frees the bytes with the last tensor that refers to them."""
