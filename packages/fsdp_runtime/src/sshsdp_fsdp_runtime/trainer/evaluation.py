"""Evaluation: the loss on held-out tokens, the same for any number of ranks."""

import math
import struct

import torch
from torch.nn import functional

from sshsdp_fsdp_runtime.trainer.batches import read_rows, validation_starts
from sshsdp_fsdp_runtime.trainer.corpus import Tokens
from sshsdp_fsdp_runtime.trainer.session import Session


class Evaluation:
    """Windows of the validation split, dealt out to the ranks.

    Args:
        tokens: the validation tokens, 1-D.
        context: tokens per window.
        windows: most windows that are used.
        microbatch: most windows at once.
        rank: this rank.
        world: number of ranks.
    """

    def __init__(
        self, tokens: Tokens, *, context: int, windows: int, microbatch: int, rank: int, world: int
    ) -> None:
        self._tokens, self._context, self._microbatch = tokens, context, microbatch
        self._starts = validation_starts(len(tokens), context, windows)
        # Every rank runs equally many; what comes after the last window does not count.
        share = math.ceil(len(self._starts) / world)
        mine = (rank + world * turn for turn in range(share))
        self._mine = [self._starts[index % len(self._starts)] for index in mine]

    def run(self, session: Session) -> float:
        """Mean loss in nats per token. Collective."""
        losses: list[float] = []
        with torch.no_grad():
            for first in range(0, len(self._mine), self._microbatch):
                starts = self._mine[first : first + self._microbatch]
                rows = read_rows(self._tokens, starts, self._context)
                logits = session.model(rows[:, :-1])
                loss = functional.cross_entropy(
                    logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="none"
                )
                losses += loss.view(len(starts), -1).mean(dim=1, dtype=torch.float64).tolist()
        form = f"<{len(losses)}d"
        by_rank = [
            struct.unpack(form, part) for part in session.exchange(struct.pack(form, *losses))
        ]
        # Summed in window order, whoever computed them, so the ranks' number leaves no trace.
        in_order = [loss for turn in zip(*by_rank, strict=True) for loss in turn]
        counted = in_order[: len(self._starts)]
        return math.fsum(counted) / len(counted)
