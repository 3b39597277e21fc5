"""Bad input is refused with what was expected, what came and what to do."""

import pytest
import torch

from sshsdp_mxfp import MXTensor, dequantize, quantize


@pytest.mark.parametrize(
    ("shape", "block", "text"),
    [
        (
            (32, 40),
            (32, 32),
            r"of the block 32x32, got shape \[32, 40\]; pad it to \[32, 64\]",
        ),
        ((33, 64), (32, 32), r"got shape \[33, 64\]; pad it to \[64, 64\]"),
        ((5, 2, 33), (1, 32), r"multiples of the block 1x32, .*; pad it to \[5, 2, 64\]"),
        ((31,), (1, 32), r"pad it to \[32\]"),
        ((2, 32, 32), (32, 32), r"expected 2 dimensions for blocks of 32x32, got shape"),
        ((32,), (32, 32), r"expected 2 dimensions"),
        ((), (1, 32), r"expected at least 1 dimension"),
        ((32, 32), (32, 1), r"expected a block of \(32, 32\) or \(1, 32\), got \(32, 1\)"),
    ],
)
def test_shapes_and_blocks(shape, block, text):
    with pytest.raises(ValueError, match=text):
        quantize(torch.zeros(shape), block)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e4m3fn])
def test_dtypes(dtype):
    with pytest.raises(ValueError, match=f"expected a tensor of torch.float32, .*, got {dtype}"):
        quantize(torch.zeros(32, 32, dtype=dtype), (32, 32))
    with pytest.raises(ValueError, match=f"got {dtype}"):
        dequantize(MXTensor.empty((32, 32), (32, 32)), dtype)


def test_devices():
    with pytest.raises(ValueError, match="expected a tensor on the CPU, got meta"):
        quantize(torch.zeros(32, 32, device="meta"), (32, 32))
    data = torch.zeros(32, 32, dtype=torch.float8_e4m3fn, device="meta")
    scale = torch.zeros(1, 1, dtype=torch.float8_e8m0fnu, device="meta")
    with pytest.raises(ValueError, match="expected a tensor on the CPU, got meta"):
        dequantize(MXTensor(data, scale, (32, 32)))


@pytest.mark.parametrize(("shape", "block"), [((32, 64), (1, 32)), ((64, 64), (32, 32))])
def test_outputs_of_another_shape_or_block(shape, block):
    with pytest.raises(ValueError, match=r"expected out of shape \[32, 64\] in blocks \(32, 32\)"):
        quantize(torch.zeros(32, 64), (32, 32), out=MXTensor.empty(shape, block))


def test_parts_that_do_not_belong_together():
    good = MXTensor.empty((64, 64), (32, 32))
    with pytest.raises(ValueError, match=r"expected scales of shape \[64, 2\] .*, got \[2, 2\]"):
        MXTensor(good.data, good.scale, (1, 32))
    with pytest.raises(ValueError, match=r"got torch.uint8; .*view\(torch.float8_e8m0fnu\)"):
        MXTensor(good.data, good.scale.view(torch.uint8), (32, 32))
    with pytest.raises(
        ValueError, match=r"expected data of torch\.float8_e4m3fn, got torch\.uint8"
    ):
        MXTensor(good.data.view(torch.uint8), good.scale, (32, 32))
