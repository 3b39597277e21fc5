"""Losses and summaries against the same counted element by element in rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_mxfp import E2M1, E2M3, E3M2, E4M3, E5M2, MXFP4, MXFP6, MXFP8, quantize
from sshsdp_mxfp.explain import measure, pieces, summarize

KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}
INF, NAN = math.inf, math.nan


def counted(x, fmt, oracle):
    """Noise, power, worst, saturated, vanished, subnormal, lost and scales of a matrix."""
    noise = power = worst = Fraction(0)
    saturated = vanished = subnormal = lost = 0
    scales = [0] * 256
    steps = 1 << fmt.element.mantissa_bits
    for top in range(0, x.shape[0], fmt.rows):
        for left in range(0, x.shape[1], fmt.columns):
            tile = x[top : top + fmt.rows, left : left + fmt.columns].flatten().tolist()
            code, elements = oracle.block(tile)
            scales[code] += 1
            finite = [(v, e) for v, e in zip(tile, elements, strict=True) if math.isfinite(v)]
            if code == 255:
                lost += len(finite)
                continue
            largest = max((abs(Fraction(v)) for v, _ in finite), default=Fraction(0))
            for value, element in finite:
                exact, kept = Fraction(value), oracle.value(element, code)
                noise += (kept - exact) ** 2
                power += exact**2
                worst = max(worst, abs(kept - exact) / largest if largest else Fraction(0))
                saturated += abs(exact) > oracle.largest * Fraction(2) ** (code - 127)
                vanished += kept == 0 != exact
                subnormal += 0 < (element & (oracle.sign - 1)) < steps
    return noise, power, worst, saturated, vanished, subnormal, lost, scales


@st.composite
def cases(draw):
    element = draw(st.sampled_from(list(KINDS)))
    rule = draw(st.sampled_from(["rceil", "floor", "ceil", "even"]))
    block = draw(st.sampled_from([(1, 32), (32, 1), (4, 8), (1, 4)]))
    shape = draw(st.tuples(st.integers(1, 37), st.integers(1, 37)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    spread = draw(st.sampled_from([0.0, 2.0, 6.0]))
    x = torch.randn(shape, generator=generator)
    x *= torch.exp2(spread * torch.randn(shape, generator=generator))
    for special in draw(st.lists(st.sampled_from([0.0, INF, -INF, NAN]), max_size=3)):
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = special
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    return KINDS[element](block, element, rule, "partial"), x.to(dtype)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_every_number_equals_that_of_rational_arithmetic(oracles, case):
    fmt, x = case
    summary = summarize(x)
    loss = measure(x, fmt, summary)
    noise, power, worst, *rest = counted(x, fmt, oracles(fmt.element.name, fmt.rule))
    found = loss.saturated, loss.vanished, loss.subnormal, loss.lost, list(loss.scales)
    assert list(found) == rest
    unit = Fraction(summary.unit) ** 2
    assert loss.noise == pytest.approx(float(noise / unit), rel=1e-12)
    assert loss.power == pytest.approx(float(power / unit), rel=1e-12)
    assert loss.worst == pytest.approx(float(worst), rel=1e-12)
    assert loss.bits == 8 * quantize(x, fmt).nbytes / x.numel()


@pytest.mark.parametrize(
    "shape", [(3, 40, 70), (2, 2, 33, 5), (300,), (1, 1000), (64, 64)], ids=str
)
@pytest.mark.parametrize("fmt", [MXFP8((1, 32)), MXFP8((32, 32)), MXFP4((32, 1))], ids=str)
def test_chunks_change_nothing(monkeypatch, shape, fmt):
    if len(shape) < 2 and fmt.rows > 1:
        fmt = MXFP6((1, 32))
    fmt = type(fmt)(fmt.block, fmt.element, fmt.rule, "partial")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    summary, whole = summarize(x), measure(x, fmt, summarize(x))
    monkeypatch.setattr(pieces, "CHUNK", 100)
    seen = []
    cut = measure(x, fmt, summarize(x), seen.append)
    assert len(seen) > 1
    assert sum(seen) == x.numel()
    assert summarize(x) == summary
    assert cut.rms == pytest.approx(whole.rms, rel=1e-12)
    for name in ("numel", "bits", "worst", "saturated", "vanished", "subnormal", "scales"):
        assert getattr(cut, name) == getattr(whole, name)


def test_pieces_do_not_grow_with_the_tensor():
    x = torch.empty(1, 1 << 13, 1 << 13).expand(1 << 10, -1, -1)  # 2^36 elements, no memory
    first = next(pieces.pieces(x, (32, 32)))
    assert first.numel() <= pieces.CHUNK
    assert first.shape[-2] % 32 == 0


def test_summary_counts_what_is_there():
    x = torch.tensor([[0.0, -0.0, INF, NAN], [-1.5, 2.0, 0.25, 3.9]])
    summary = summarize(x)
    assert (summary.zeros, summary.infinities, summary.nans, summary.numel) == (2, 1, 1, 8)
    assert (summary.largest, summary.smallest, summary.unit) == (x[1, 3].item(), 0.25, 2.0)
    assert summary.exponents == {-2: 1, 0: 1, 1: 2}
    assert summary.binades == pytest.approx(math.log2(3.9 / 0.25))


@pytest.mark.parametrize("scale", [1e300, 1e-300, 5e-324])
def test_squares_of_float64_neither_overflow_nor_vanish(scale):
    """E8M0 doesn't reach so far: all saturates or vanishes, and the numbers say so."""
    x = torch.full((1, 32), scale, dtype=torch.float64)
    loss = measure(x, MXFP8(), summarize(x))
    assert loss.rms == pytest.approx(1.0)
    assert (loss.saturated, loss.vanished) == ((32, 0) if scale > 1 else (0, 32))


def test_parameters_are_measured_without_recording():
    x = torch.nn.Parameter(torch.randn(4, 32))
    assert measure(x, MXFP8(), summarize(x)) == measure(x.data, MXFP8(), summarize(x.data))


def test_nothing_lost_is_infinitely_many_decibels():
    for x in (torch.zeros(2, 32), torch.ones(2, 32)):
        loss = measure(x, MXFP8(), summarize(x))
        assert (loss.rms, loss.decibels, loss.worst) == (0.0, INF, 0.0)
