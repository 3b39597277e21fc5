"""A step's global batch is the same for any number of ranks and any microbatch."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from sshsdp_fsdp_runtime.trainer.batches import TrainBatches, read_rows, validation_starts
from sshsdp_fsdp_runtime.trainer.order import Order

TOKENS = np.arange(5000, dtype=np.uint16)
ORDER = Order(seed=3, tokens=5000, context=16, batch=12)


def step_rows(step, rank, world, microbatch):
    batches = TrainBatches(TOKENS, ORDER, rank=rank, world=world, microbatch=microbatch)
    return list(batches.microbatches(step))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("microbatch", [1, 2, 5, 100])
def test_slices_of_all_ranks_make_the_global_batch(world, microbatch):
    whole = torch.cat(step_rows(9, 0, 1, 12))
    parts = [rows for rank in range(world) for rows in step_rows(9, rank, world, microbatch)]
    assert torch.equal(torch.cat(parts), whole)
    assert max(map(len, parts)) <= microbatch


def test_rows_are_consecutive_tokens_with_one_target_more():
    (rows,) = step_rows(0, 0, 1, 12)
    assert rows.shape == (12, 17)
    assert rows.dtype == torch.int64
    assert torch.equal(rows.diff(dim=1), torch.ones(12, 16, dtype=torch.int64))


@pytest.mark.parametrize(("tokens", "windows"), [(17, 4), (100, 4), (1000, 7), (5000, 1000)])
def test_validation_windows_are_disjoint_and_spread(tokens, windows):
    starts = validation_starts(tokens, 16, windows)
    assert len(starts) == min(windows, (tokens - 1) // 16)
    assert all(later - earlier >= 16 for earlier, later in pairwise(starts))
    assert read_rows(np.arange(tokens), starts, 16).shape == (len(starts), 17)
