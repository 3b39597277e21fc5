"""What a compiler asks of a transport for ranks whose memory it can't address."""

from typing import Protocol

import torch

from sshsdp_zerosm.steps import Step


class Remote(Protocol):
    """Makes the steps that are messages."""

    def program(self) -> None:
        """A schedule is about to be compiled."""

    def start(self, schedule: str, phase: str) -> Step:
        """The step before all steps of a phase."""

    def put(self, source: torch.Tensor, to: int, arena: str, offset: int) -> Step:
        """Send `source` (own memory) to offset `offset` of rank `to`'s arena."""

    def fence(self, source: torch.Tensor) -> Step:
        """Wait until what was sent of `source` no longer needs it."""
