"""Bad input is refused with what was expected, what came and what to do."""

import pytest
import torch

from sshsdp_mxfp import (
    E2M1,
    E2M3,
    E4M3,
    MXFP4,
    MXFP6,
    MXFP8,
    Format,
    MXTensor,
    NonFiniteError,
    Stochastic,
    dequantize,
    quantize,
)


@pytest.mark.parametrize(
    ("shape", "block", "text"),
    [
        ((32, 40), (32, 32), r"of the block 32x32, got shape \[32, 40\]; pad it to \[32, 64\]"),
        (
            (33, 64),
            (32, 32),
            r"pad it to \[64, 64\], or .* ragged=\"partial\"",
        ),
        ((5, 2, 33), (1, 32), r"multiples of the block 1x32, .*; pad it to \[5, 2, 64\]"),
        ((5, 2, 32), (32, 1), r"multiples of the block 32x1, .*; pad it to \[5, 32, 32\]"),
        ((31,), (1, 32), r"pad it to \[32\]"),
        ((32,), (32, 32), r"expected at least 2 dimensions for blocks of 32x32"),
        ((), (1, 32), r"expected at least 1 dimension for blocks of 1x32"),
    ],
)
def test_shapes(shape, block, text):
    with pytest.raises(ValueError, match=text):
        quantize(torch.zeros(shape), MXFP8(block))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MXFP8((0, 32)), r"expected a block of two positive sizes, .*, got \(0, 32\)"),
        (lambda: MXFP8(32), r"expected a block of two positive sizes, .*, got 32"),
        (lambda: MXFP8(element=E2M1), r"expected elements of E4M3 or E5M2 in MXFP8, got E2M1"),
        (lambda: MXFP6(element=E4M3), r"expected elements of E2M3 or E3M2 in MXFP6"),
        (lambda: MXFP4(element=E2M3), r"expected elements of E2M1 in MXFP4"),
        (lambda: MXFP4((1, 7)), r"expected an even number of columns, or one, .*; got 1x7"),
        (lambda: MXFP8(rule="round"), r"expected a rule of rceil, floor, ceil, even, got 'round'"),
        (lambda: MXFP8(ragged="pad"), r"policy for ragged edges of refuse, partial, got 'pad'"),
        (lambda: Stochastic(-1), r"expected seed to be an integer of 64 bits, got -1"),
        (lambda: Stochastic(0, parameter=1 << 32), r"expected parameter .* of 32 bits"),
        (lambda: Stochastic(0, 0, 0.5), r"expected ordinal .* of 32 bits, got 0.5"),
    ],
)
def test_descriptions(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_the_base_of_the_formats_is_none_itself():
    with pytest.raises(TypeError, match="use MXFP8, MXFP6 or MXFP4"):
        Format((1, 32), E4M3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e4m3fn])
def test_dtypes(dtype):
    with pytest.raises(ValueError, match=f"expected a tensor of torch.float32, .*, got {dtype}"):
        quantize(torch.zeros(32, 32, dtype=dtype), MXFP8())
    with pytest.raises(ValueError, match=f"got {dtype}"):
        dequantize(MXTensor.empty((32, 32), MXFP8()), dtype)


def test_types():
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor, got list; use torch.as_tensor"):
        quantize([1.0] * 32, MXFP8())
    with pytest.raises(TypeError, match=r"expected a format such as MXFP8\(\), got <class .*MXFP8"):
        quantize(torch.zeros(32, 32), MXFP8)
    with pytest.raises(TypeError, match="expected an MXTensor, got Tensor; quantize makes one"):
        dequantize(torch.zeros(32, 32))


def test_devices():
    with pytest.raises(ValueError, match="expected a tensor on the CPU or a CUDA device, got meta"):
        quantize(torch.zeros(32, 32, device="meta"), MXFP8())
    with pytest.raises(ValueError, match="expected a tensor on the CPU or a CUDA device, got meta"):
        dequantize(MXTensor.empty((32, 32), MXFP8(), device="meta"))
    data = torch.zeros(32, 32, dtype=torch.float8_e4m3fn, device="meta")
    scale = torch.zeros(32, 1, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    with pytest.raises(ValueError, match="data and scales on one device, got meta and cpu"):
        MXTensor(data, scale, MXFP8(), data.shape)


@pytest.mark.parametrize(
    ("shape", "fmt"),
    [((32, 64), MXFP8()), ((64, 64), MXFP8((32, 32))), ((32, 64), MXFP4((32, 32)))],
)
def test_outputs_of_another_shape_or_format(shape, fmt):
    text = r"expected out of shape \[32, 64\] as e4m3 in blocks of 32x32, rceil on cpu, got"
    with pytest.raises(ValueError, match=text):
        quantize(torch.zeros(32, 64), MXFP8((32, 32)), out=MXTensor.empty(shape, fmt))


def test_outputs_of_dequantization():
    q = MXTensor.empty((32, 64), MXFP8())
    for out in (torch.empty(64, 32), torch.empty(32, 64, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match=r"expected out of shape \[32, 64\], torch.float32"):
            dequantize(q, out=out)


def test_parts_that_do_not_belong_together():
    good = MXTensor.empty((64, 64), MXFP8((32, 32)))
    data, scale = good.data, good.scale
    with pytest.raises(ValueError, match=r"expected scales of shape \[64, 2\] .*, got \[2, 2\]"):
        MXTensor(data, scale, MXFP8(), data.shape)
    with pytest.raises(ValueError, match=r"got torch.uint8; .*view\(torch.float8_e8m0fnu\)"):
        MXTensor(data, scale.view(torch.uint8), good.format, data.shape)
    with pytest.raises(ValueError, match=r"data of torch\.float8_e4m3fn, got torch\.uint8; a"):
        MXTensor(data.view(torch.uint8), scale, good.format, data.shape)
    with pytest.raises(ValueError, match=r"data of torch\.float8_e4m3fn, got torch\.float32$"):
        MXTensor(data.float(), scale, good.format, data.shape)
    packed = MXTensor.empty((64, 64), MXFP4())
    with pytest.raises(ValueError, match=r"data of shape \[64, 16\] .*, got \[64, 32\]"):
        MXTensor(packed.data, packed.scale[:, :1], MXFP4(), torch.Size((64, 32)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_where_finite_was_required(dtype, bad):
    x = torch.ones(64, 64, dtype=dtype)
    x[0, 0] = torch.finfo(dtype).max
    quantize(x, MXFP8(), require_finite=True)
    x[40, 3] = bad
    with pytest.raises(NonFiniteError, match=r"expected finite values, got .* in rows 0 to 63"):
        quantize(x, MXFP8(), require_finite=True)
