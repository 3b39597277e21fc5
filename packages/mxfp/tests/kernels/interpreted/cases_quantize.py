"""Quantization kernels give the bytes of the CPU, whatever the shape, format and memory order."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_mxfp import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    MXFP4,
    MXFP6,
    MXFP8,
    MXTensor,
    QuantizeJob,
    Stochastic,
    quantize,
)
from sshsdp_mxfp.kernels.quantize import prepare

KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}
# The interpreter is numpy, which warns where values overflow as they should.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
RULES = ["rceil", "floor", "ceil", "even"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def blank(shape, fmt, transposed=False):
    """Results in the middle of memory that nobody may touch."""
    empty = MXTensor.empty((*shape[:-2], shape[-1], shape[-2]) if transposed else shape, fmt)
    parts = []
    for part in (empty.codes, empty.scale_codes):
        memory = torch.full((part.numel() + 64,), 0xA5, dtype=torch.uint8)
        parts.append(memory[32:-32].view(part.shape))
    data, scale = parts[0].view(empty.data.dtype), parts[1].view(empty.scale.dtype)
    result = MXTensor(data, scale, fmt, empty.shape)
    return result.mT if transposed else result


def check(job):
    for out in job.outs:
        wanted = quantize(job.x, out.format, rounding=job.rounding)
        assert torch.equal(out.scale_codes, wanted.scale_codes), out.format
        assert torch.equal(out.codes, wanted.codes), out.format
        for part in (out.codes, out.scale_codes):
            memory = torch.empty(0, dtype=torch.uint8).set_(part.untyped_storage())
            assert memory[:32].eq(0xA5).all()
            assert memory[-32:].eq(0xA5).all()


def run(jobs, direct=False):
    launches = prepare(jobs, direct=direct)
    for launch in launches:
        launch.run()
    for job in jobs:
        check(job)
    return launches


def of(element, block, rule="rceil"):
    return KINDS[element](block, element, rule, "partial")


def values(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return (x * torch.exp2(4 * torch.randn(shape, generator=generator))).to(dtype)


def any_bits(rows, columns):
    """Every kind of float: half of them anything, NaN included, half of similar size."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(1 << 31), 1 << 31, (rows, columns), generator=generator)
    bits[rows // 2 :] = (bits[rows // 2 :] & 0x83FFFFFF) + 0x3C000000
    edges = [0, 1 << 31, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000]
    for row, edge in enumerate(edges):
        bits[row] = 0
        bits[row, 3] = edge
        bits[row, 5] = 0x00400000
    return bits.to(torch.int32).view(torch.float32)


@st.composite
def jobs(draw):
    element = draw(st.sampled_from(list(KINDS)))
    rule = draw(st.sampled_from(RULES))
    blocks = [(1, 32), (32, 1), (32, 32), (1, 16), (2, 4), (128, 128)]
    fmt = of(element, draw(st.sampled_from(blocks)), rule)
    shape = draw(
        st.one_of(
            st.tuples(st.integers(1, 80), st.integers(1, 150)),
            st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
            st.just((64, 256)),
        )
    )
    dtype = draw(st.sampled_from(DTYPES))
    x = values(shape, dtype, draw(st.integers(0, 9)))
    memory = draw(st.sampled_from(["rows", "columns", "strided"]))
    if memory == "columns":
        x = x.mT.contiguous().mT
    elif memory == "strided":
        x = torch.stack([x, x], -1)[..., 0]
    second = draw(st.sampled_from([None, *blocks[:3]]))
    turned = draw(st.booleans()) and element is not E2M1
    other = None
    if second is not None:
        block = second[::-1] if turned else second
        other = blank(shape, of(element, block, rule), turned)
    rounding = draw(
        st.none() | st.builds(Stochastic, st.integers(0, (1 << 64) - 1), *2 * [st.integers(0, 99)])
    )
    return QuantizeJob(x, blank(shape, fmt), other, rounding)


@settings(max_examples=15)
@given(jobs(), st.booleans())
def test_any_job(job, direct):
    job.check()
    run([job], direct)


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_any_float_under_every_rule(element):
    x = any_bits(64, 128)
    run([QuantizeJob(x, blank(x.shape, of(element, (1, 32), rule))) for rule in RULES])


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_ties_and_their_neighbours(element):
    fmt = of(element, (1, 32))
    codes = torch.arange(element.largest_code + 1, dtype=torch.uint8)
    if element.per_byte == 2:
        codes = codes[::2] | codes[1::2] << 4
    one = torch.full((1, -(-len(codes) * element.per_byte // 32)), 127, dtype=torch.uint8)
    grid = MXTensor(codes.view(1, -1).view(element.dtype), one.view(torch.float8_e8m0fnu), fmt,
                    torch.Size((1, len(codes) * element.per_byte)))  # fmt: skip
    exact = grid.dequantize().flatten()
    ties = (exact[1:] + exact[:-1]) / 2
    near = torch.cat([ties, ties.nextafter(torch.tensor(0.0)), ties.nextafter(torch.tensor(9e9))])
    near = torch.cat([near, exact])
    near = torch.nn.functional.pad(near, (0, -len(near) % 31)).view(-1, 31)
    x = torch.cat([torch.full((len(near), 1), element.largest), near], 1)
    run([QuantizeJob(torch.cat([x, -x]) * 2.0**k, blank((2 * len(x), 32), fmt)) for k in (0, -140)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_float_of_16_bits(dtype):
    patterns = torch.arange(1 << 16).to(torch.int16).view(dtype)
    alone = torch.zeros(1 << 16, 2, dtype=dtype)
    alone[:, 1] = patterns
    run([
        QuantizeJob(alone.view(256, 512), blank((256, 512), of(E4M3, (1, 2)))),
        QuantizeJob(patterns.view(512, 128), blank((512, 128), of(E4M3, (1, 32)))),
    ])  # fmt: skip


def test_many_shapes_are_one_launch():
    shapes = [(3, 5), (64, 256), (1, 1), (200, 33), (5,), (2, 3, 40), (0, 7), (33, 129)]
    jobs = [
        QuantizeJob(
            values(shape, seed=k),
            blank(shape, of(E4M3, (1, 32))),
            rounding=Stochastic(7, parameter=k, ordinal=(1 << 32) - 2),
        )
        for k, shape in enumerate(shapes)
    ]
    (launch,) = run([job for job in jobs if not _aligned(job)])
    assert launch.programs > len(shapes)
    assert len(run(jobs)) == 2  # tensors that 128-bit accesses suit have a kernel of their own


def _aligned(job):
    return job.x.shape == (64, 256)


def test_a_step_counts_all_ordinals_on():
    job = QuantizeJob(values((32, 64)), blank((32, 64), of(E4M3, (1, 32))), None, Stochastic(1))
    for step, ordinal in ((5, 5), ((1 << 32) - 1, (1 << 32) - 1), (1 << 32, 0)):
        for launch in prepare([job]):
            launch.run(step=step % (1 << 32))
        wanted = quantize(job.x, job.out.format, rounding=Stochastic(1, ordinal=ordinal))
        assert torch.equal(job.out.codes, wanted.codes)


@pytest.mark.parametrize("direct", [False, True])
def test_offsets_have_64_bits(direct):
    far = 1 << 31
    x = torch.empty(far + 64, dtype=torch.bfloat16).as_strided((2, 64), (far, 1))  # never touched
    data = torch.empty(far + 64, dtype=torch.float8_e4m3fn).as_strided((2, 64), (far, 1))
    x.copy_(values((2, 64)))
    scale = torch.empty(2, 2, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    out = MXTensor(data, scale, MXFP8(), torch.Size((2, 64)))
    for launch in prepare([QuantizeJob(x, out)], direct=direct):
        launch.run()
    wanted = quantize(x.clone(), MXFP8())
    assert torch.equal(out.codes.clone(), wanted.codes)
    assert torch.equal(out.scale_codes, wanted.scale_codes)


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_nothing_is_behind_an_odd_last_element_of_a_block_of_nan(element):
    x = torch.full((3, 33), torch.nan)
    run([QuantizeJob(x, blank(x.shape, of(element, (1, 32))))])


def test_rows_of_random_numbers_go_on_through_all_matrices():
    for shape, block in itertools.product([(3, 33, 40), (3, 32, 40)], [(1, 32), (32, 32)]):
        job = QuantizeJob(values(shape), blank(shape, of(E5M2, block)), None, Stochastic(1 << 63))
        run([job])
