"""The FSDP2 comparison: the frozen model, its rows, and sides that do the same mathematics."""

import math

import pytest
import torch
from testing.bench_module import find, load
from testing.bench_program import ROOT, Program, Run, run_program
from testing.bench_samples import Samples

FILE = find(ROOT, "fsdp2")
fsdp2 = load(FILE)
TINY = {"sequences": 1, "tokens": 8, "warmup": 0, "steps": 2}


def test_the_reference_model_is_frozen():
    model = fsdp2.reference.build()
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert sum(math.prod(shape) for shape in shapes.values()) == 19_143_168
    assert len(shapes) == 6 * 6 + 3
    assert shapes["layers.5.qkv.weight"] == (1536, 512)
    assert shapes["layers.0.down.weight"] == (512, 2048)
    with torch.no_grad():
        logits = model(torch.arange(16).view(2, 8))
    assert logits.shape == (2, 8, 256)


def test_the_model_is_causal():
    model = fsdp2.reference.build()
    first, second = torch.arange(8).view(1, 8), torch.arange(8).view(1, 8).clone()
    second[0, 5:] = 77
    with torch.no_grad():
        one, two = model(first), model(second)
    torch.testing.assert_close(one[:, :5], two[:, :5])
    assert not torch.allclose(one[:, 5:], two[:, 5:])


def test_data_depends_on_the_rank_and_on_nothing_else():
    batches = fsdp2.reference.batches
    first, again, other = (list(batches(rank, 1, 1, 8)) for rank in (0, 0, 1))
    assert len(first) == 4
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(first, other, strict=True))
    assert all(torch.equal(x[:, 1:], y[:, :-1]) for x, y in first)


@pytest.fixture(scope="module")
def plain_losses():
    """Losses [rank][step] of one process that averages both ranks' gradients."""
    model = fsdp2.reference.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=fsdp2.reference.LEARNING_RATE)
    data = [list(fsdp2.reference.batches(rank, 2, 1, 8)) for rank in range(2)]
    losses = [[0.0, 0.0], [0.0, 0.0]]
    for step in range(2):
        for rank in range(2):
            for inputs, targets in data[rank][4 * step : 4 * step + 4]:
                log = model(inputs).log_softmax(-1)
                loss = -log.gather(-1, targets.unsqueeze(-1)).mean() / 4
                (loss / 2).backward()
                losses[rank][step] += loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("side", ["fsdp2", "sshsdp"])
def test_a_side_trains_like_plain_pytorch_on_both_ranks_data(side, plain_losses):
    run = run_program(FILE, Program(side, "tiny", side, ranks=2, arguments=TINY))
    for rank, expected in zip(run.ranks, plain_losses, strict=True):
        assert rank["losses"] == pytest.approx(expected, abs=2e-5)
        assert len(rank["seconds"]) == 2


def test_the_floor_takes_its_steps_beside_ours():
    run = run_program(FILE, Program("paired", "tiny", "paired", ranks=2, arguments=TINY))
    for rank in run.ranks:
        assert len(rank["seconds"]) == len(rank["floor_seconds"]) == 2
        assert min(*rank["seconds"], *rank["floor_seconds"]) > 0


def test_the_floor_updates_one_part_of_every_parameter():
    model = fsdp2.reference.build()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = fsdp2.sides.PartialAdamW(model, rank=1, world=2)
    fsdp2.reference.train(model, optimizer, 1, **(TINY | {"steps": 1}))
    for old, new in zip(before, model.parameters(), strict=True):
        changed = (old != new).view(-1)
        half = changed.numel() // 2
        assert not changed[:half].any()
        assert changed[half:].float().mean() > 0.9


def test_rows_are_paired_ratios_with_their_goals():
    """Three rounds on a machine that slows down: ratios stay what each round says."""
    runs = {}
    times = {"fsdp2": 6.0, "sshsdp": 2.0}
    for workload in (fsdp2.SMALL, fsdp2.LARGE, fsdp2.WIDE, fsdp2.MEMORY):
        for side, pace in times.items():
            memory = ((400 << 20, 200 << 20), (600 << 20, 400 << 20))[side == "fsdp2"]
            runs[workload, side] = [
                Run(
                    (
                        _answer([pace * slow, pace * slow / 2, 99.0], 1.0),
                        _answer([pace * slow / 2, pace * slow, pace], 2.0 + (side == "fsdp2")),
                    ),
                    memory if workload == fsdp2.MEMORY else (),
                )
                for slow in (1.0, 4.0, 2.0)
            ]
    pairs = ([2.0, 8.0, 4.0], [2.5, 10.0, 4.0]), ([1.0, 8.0, 1.0], [2.5, 1.0, 3.0])
    steps = [{"seconds": ours, "floor_seconds": floor} for ours, floor in pairs]
    runs[fsdp2.LARGE, "paired"] = [Run(tuple(steps))]
    rows = {row.name: row for row in fsdp2.rows(Samples(runs))}
    values = {name: (row.value, row.goal, row.better) for name, row in rows.items()}
    assert {name: value for name, value in values.items() if "seconds" not in name} == {
        "speedup/64tok/2ranks": (3.0, 3.0, "higher"),
        "speedup/512tok/2ranks": (3.0, 1.4, "higher"),
        "speedup/64tok/4ranks": (3.0, 3.0, "higher"),
        "vs_floor/512tok/2ranks": (0.8, 1.0, "lower"),
        "peak_memory_ratio/64tok/2ranks": (0.6, 0.6, "lower"),
        "loss_difference/64tok/2ranks": (0.5, 1e-3, "lower"),
        "loss_difference/512tok/2ranks": (0.5, 1e-3, "lower"),
        "loss_difference/64tok/4ranks": (0.5, 1e-3, "lower"),
    }
    assert rows["speedup/64tok/2ranks"].details["fsdp2_round_medians"]["max"] == 24.0
    assert values["step_seconds/sshsdp/64tok/2ranks"] == (8.0, None, "lower")
    assert rows["vs_floor/512tok/2ranks"].details["ratio"]["max"] == 1.0


def test_rows_need_only_the_sides_that_were_run():
    runs = {(fsdp2.SMALL, "fsdp2"): [Run((_answer([1.0], 1.0),))]}
    names = [row.name for row in fsdp2.rows(Samples(runs))]
    assert names == ["step_seconds/fsdp2/64tok/2ranks"]


def _answer(seconds, loss):
    return {"seconds": seconds, "losses": [9.0, loss], "memory_before": [1 << 20]}
