"""What packing costs and gives: forward and backward of a projection, packed against apart.

Both sides alternate in one process; the ratio of their medians is printed and in ``extra_info``.
"""

import copy
import statistics
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

from sshsdp_fsdp_runtime import Pack, fully_shard

NAMES = ("query", "key", "value")
ROUNDS = 21


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Projections(nn.Module):
    def __init__(self, width: int, rows: tuple[int, ...], joined: bool) -> None:
        super().__init__()
        self.joined = joined
        self.inner = nn.ModuleDict(
            {n: nn.Linear(width, r, bias=False) for n, r in zip(NAMES, rows, strict=True)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [self.inner[name](x) for name in NAMES]
        if self.joined:  # their gradients are columns of one buffer
            return torch.cat(outputs, -1).sum()
        return torch.stack([output.square().sum() for output in outputs]).sum()


def one_pass(module: nn.Module, x: torch.Tensor) -> None:
    module(x).backward()


@pytest.mark.parametrize("joined", [True, False], ids=["one-buffer", "apart"])
@pytest.mark.parametrize(
    ("tokens", "width", "rows"),
    [(64, 512, (512, 512, 512)), (512, 512, (512, 128, 128)), (8, 64, (64, 64, 64))],
    ids=["64-tokens", "512-tokens-gqa", "small"],
)
def test_packed_against_apart(
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
    tokens: int,
    width: int,
    rows: tuple[int, ...],
    joined: bool,
) -> None:
    torch.manual_seed(0)
    plain = Projections(width, rows, joined)
    packed = fully_shard(copy.deepcopy(plain), packs=[Pack("inner", NAMES)])
    apart = fully_shard(plain)
    x = torch.randn(tokens, width, requires_grad=True)
    seconds: dict[str, list[float]] = {"packed": [], "apart": []}
    for side, module in [("packed", packed), ("apart", apart)] * ROUNDS:
        start = time.perf_counter()
        one_pass(module, x)
        seconds[side].append(time.perf_counter() - start)
    ratio = statistics.median(seconds["packed"][1:]) / statistics.median(seconds["apart"][1:])
    benchmark.extra_info["packed over apart"] = ratio
    with capsys.disabled():
        sys.stdout.write(f"\npacked / apart: {ratio:.2f} ")
    benchmark(one_pass, packed, x)
