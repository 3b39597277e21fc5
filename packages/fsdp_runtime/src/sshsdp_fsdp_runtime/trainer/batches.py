"""Batches: the rows of token ids that a rank trains on and validates with."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sshsdp_fsdp_runtime.trainer.corpus import Tokens
from sshsdp_fsdp_runtime.trainer.order import Order


class TrainBatches:
    """Slices of the global batch.

    Args:
        tokens: the training tokens, 1-D.
        order: which windows form a step's global batch.
        rank: this rank; it takes the rank-th of `world` equal, contiguous slices of every step.
        world: number of ranks; divides the global batch.
        microbatch: most rows at once.
    """

    def __init__(
        self, tokens: Tokens, order: Order, *, rank: int, world: int, microbatch: int
    ) -> None:
        self._tokens, self._order, self._microbatch = tokens, order, microbatch
        self.rows = order.batch // world
        self._indices = range(rank * self.rows, (rank + 1) * self.rows)

    def microbatches(self, step: int) -> Iterator[Tensor]:
        """Int64 (at most microbatch, context + 1) each; the rank's slice of step `step`."""
        for first in range(0, self.rows, self._microbatch):
            indices = self._indices[first : first + self._microbatch]
            starts = [self._order.start(step, index) for index in indices]
            yield read_rows(self._tokens, starts, self._order.context)


def validation_starts(tokens: int, context: int, windows: int) -> list[int]:
    """Starts of at most `windows` disjoint windows, spread evenly over `tokens` tokens."""
    fitting = (tokens - 1) // context
    count = min(windows, fitting)
    return [(index * fitting // count) * context for index in range(count)]


def read_rows(tokens: Tokens, starts: Sequence[int], context: int) -> Tensor:
    """Int64 (len(starts), context + 1): inputs and, one further, targets."""
    rows = np.stack([tokens[start : start + context + 1] for start in starts])
    return torch.from_numpy(rows.astype(np.int64))
