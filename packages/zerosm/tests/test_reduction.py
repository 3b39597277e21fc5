"""Sums run in the given order and precision, and hit only their target."""

import pytest
import torch

from sshsdp_zerosm import Loopback, Reduce, Region, Schedule, reduction

CHUNK = 96


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(reduction, "CHUNK", CHUNK)


def reduce_on_loopback(sources, target, accumulator, scale=1.0, *, accumulate=False):
    """Sum tensors of rank 0 into a target with guard bytes around it; returns the target."""
    transport = Loopback(1).transports[0]
    regions = []
    for index, source in enumerate(sources):
        memory = transport.arena(f"source{index}", source.nbytes).tensor()
        memory.view(source.dtype).copy_(source)
        regions.append(Region(f"source{index}", 0, 0, source.nbytes))
    memory = transport.arena("target", target.nbytes + 128).tensor().fill_(0xAB)
    inner = memory[64:-64].view(target.dtype)
    inner.copy_(target)
    op = Reduce(
        tuple(regions),
        Region("target", 0, 64, target.nbytes),
        sources[0].dtype,
        accumulator,
        scale,
        target.dtype,
    )
    program = transport.compile(Schedule("s", 1, {"reduce": ((op,),)}))
    program.run("reduce", accumulate=accumulate)
    assert memory[:64].eq(0xAB).all()
    assert memory[-64:].eq(0xAB).all()
    assert transport.counters.reduced_bytes == sum(source.nbytes for source in sources)
    return inner.clone()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.25, 1 / 3])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("numel", [0, 1, 2 * CHUNK + 77])
@pytest.mark.parametrize(
    ("dtype", "accumulator", "stored"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float64, torch.float64, torch.float64),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float32, torch.float64, torch.float32),
    ],
    ids=str,
)
def test_every_form_equals_the_formula(
    spread_values, dtype, accumulator, stored, numel, count, scale, accumulate
):
    sources = [spread_values(numel, dtype, seed) for seed in range(count)]
    target = spread_values(numel, stored, 99)
    total = sources[0].to(accumulator)
    for source in sources[1:]:
        total = total + source.to(accumulator)
    expected = total * scale
    if accumulate:
        expected = target.to(accumulator) + expected
    got = reduce_on_loopback(sources, target, accumulator, scale, accumulate=accumulate)
    assert torch.equal(got, expected.to(stored))


def test_the_values_of_these_tests_notice_another_order(spread_values):
    one, two, three = (spread_values(4096, torch.float32, seed) for seed in range(3))
    assert not torch.equal((one + two) + three, one + (two + three))


def test_the_same_elements_cut_differently_give_the_same_bits(spread_values):
    sources = [spread_values(CHUNK + 41, torch.float32, seed) for seed in range(3)]
    target = spread_values(CHUNK + 41, torch.float32, 9)
    arguments = {"accumulator": torch.float32, "scale": 1 / 3, "accumulate": True}
    whole = reduce_on_loopback(sources, target, **arguments)
    for cut in (1, 7, CHUNK):
        parts = [
            reduce_on_loopback([source[piece] for source in sources], target[piece], **arguments)
            for piece in (slice(cut), slice(cut, None))
        ]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_target_that_is_one_of_the_sources_counts_with_its_old_value(at):
    transport = Loopback(1).transports[0]
    memory = transport.arena("a", 24).tensor().view(torch.float32)
    memory.copy_(torch.tensor([1.0, 2.0, 10.0, 20.0, 100.0, 200.0]))
    parts = tuple(Region("a", 0, start, 8) for start in (0, 8, 16))
    expected = memory.tolist()
    expected[2 * at : 2 * at + 2] = [111.0, 222.0]
    op = Reduce(parts, parts[at], torch.float32, torch.float32)
    transport.compile(Schedule("s", 1, {"p": ((op,),)})).run("p")
    assert memory.tolist() == expected


def test_programs_compiled_in_inference_mode_run_outside_of_it():
    transport = Loopback(1).transports[0]
    arena = transport.arena("a", 16)
    parts = (Region("a", 0, 0, 8), Region("a", 0, 8, 8))
    op = Reduce(parts, parts[0], torch.float32, torch.float32)
    with torch.inference_mode():
        program = transport.compile(Schedule("s", 1, {"p": ((op,),)}))
        tensor = arena.tensor()
    tensor.view(torch.float32).fill_(2.0)
    program.run("p")
    assert arena.tensor().view(torch.float32).tolist() == [4.0, 4.0, 2.0, 2.0]


def test_programs_do_not_touch_version_counters_of_handed_out_tensors():
    transport = Loopback(1).transports[0]
    arena = transport.arena("a", 16)
    tensor = arena.tensor()
    version = tensor._version
    parts = (Region("a", 0, 0, 8), Region("a", 0, 8, 8))
    op = Reduce(parts, parts[0], torch.float32, torch.float32)
    transport.compile(Schedule("s", 1, {"p": ((op,),)})).run("p")
    assert tensor._version == version
