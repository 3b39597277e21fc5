"""Dequantization kernels give the values of the CPU."""

import pytest
import torch

from sshsdp_mxfp import E3M2, E5M2, MXFP4, MXFP6, MXFP8, MXTensor, dequantize
from sshsdp_mxfp.kernels.dequantize import prepare

FORMATS = [
    MXFP8(),
    MXFP8((32, 32), E5M2),
    MXFP6((32, 1), ragged="partial"),
    MXFP6((1, 16), E3M2),
    MXFP4(ragged="partial"),
    MXFP4((32, 32)),
]
INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
# The interpreter is numpy, which warns where values overflow as they should.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")


def anything(fmt):
    """Every code under every scale."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 33, 67) if fmt.ragged == "partial" else (2, 64, 256)
    q = MXTensor.empty(shape, fmt)
    top = 256 if fmt.element.per_byte == 2 else 1 << fmt.element.bits
    q.codes.copy_(torch.randint(0, top, q.codes.shape, generator=generator))
    q.scale_codes.copy_(torch.randint(0, 256, q.scale_codes.shape, generator=generator))
    return q


def check(q, out, dtype):
    for launch in prepare(q, out):
        launch.run()
    wanted = dequantize(q, dtype)
    nan = wanted.isnan()  # which one is left to the device
    assert torch.equal(out.isnan(), nan)
    wrong = out.contiguous().view(INTEGERS[dtype]) != wanted.view(INTEGERS[dtype])
    assert not (wrong & ~nan).any()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_any_codes(fmt, dtype):
    q = anything(fmt)
    check(q, torch.full(q.shape, 7.0, dtype=dtype), dtype)


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.element.per_byte == 1], ids=str)
def test_other_memory_orders(fmt):
    q = anything(fmt)
    check(q.mT, torch.full(q.mT.shape, 7.0), torch.float32)
    strided = torch.full((*q.shape, 2), 7.0)
    check(q, strided[..., 0], torch.float32)
    assert strided[..., 1].eq(7).all()
