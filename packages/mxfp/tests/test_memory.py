"""Shapes, strides, chunk borders and preallocated outputs change no byte."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sshsdp_mxfp import (
    E3M2,
    E5M2,
    MXFP4,
    MXFP6,
    MXFP8,
    MXTensor,
    Stochastic,
    dequantize,
    geometry,
    quantize,
)

FORMATS = {
    "e4m3 1x32": MXFP8((1, 32)),
    "e4m3 32x32": MXFP8((32, 32)),
    "e5m2 32x1": MXFP8((32, 1), E5M2),
    "e3m2 32x32": MXFP6((32, 32), E3M2),
    "e2m3 2x3": MXFP6((2, 3)),
    "e2m1 1x32": MXFP4((1, 32)),
    "e2m1 32x1": MXFP4((32, 1)),
}
PARTIAL = {
    name: type(fmt)(fmt.block, fmt.element, fmt.rule, "partial") for name, fmt in FORMATS.items()
}


def random(*shape, dtype=torch.float32):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return (values * torch.exp2(torch.arange(shape[-1]) % 23)).to(dtype)


def parts(q):
    return q.codes, q.scale_codes


def assert_same(left, right):
    for one, two in zip(parts(left), parts(right), strict=True):
        assert torch.equal(one, two)


def block_by_block(x, fmt):
    """Each block quantized alone, as values."""
    values = torch.empty(x.shape, dtype=torch.float64)
    for top in range(0, x.shape[0], fmt.rows):
        for left in range(0, x.shape[1], fmt.columns):
            place = slice(top, top + fmt.rows), slice(left, left + fmt.columns)
            values[place] = quantize(x[place].contiguous(), fmt).dequantize(torch.float64)
    return values


@pytest.mark.parametrize("fmt", PARTIAL.values(), ids=PARTIAL)
@given(
    rows=st.integers(0, 70), columns=st.integers(0, 70), chunk=st.sampled_from([1, 100, 512, 2000])
)
def test_chunk_borders_and_ragged_edges_change_nothing(fmt, rows, columns, chunk):
    x = random(rows, columns) if columns else torch.zeros(rows, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "CHUNK", chunk)
        result = quantize(x, fmt)
        values = dequantize(result, torch.float64)
    whole = quantize(x, fmt)
    assert_same(result, whole)
    assert torch.equal(values, dequantize(whole, torch.float64))
    assert result.shape == values.shape == x.shape


@pytest.mark.parametrize("fmt", PARTIAL.values(), ids=PARTIAL)
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (64, 64), (65, 97)])
def test_every_block_is_quantized_as_if_alone(fmt, shape):
    x = random(*shape)
    assert torch.equal(dequantize(quantize(x, fmt), torch.float64), block_by_block(x, fmt))


@pytest.mark.parametrize("name", FORMATS)
def test_a_smaller_block_at_the_edge_is_one_padded_with_zeros(name):
    x = random(37, 45)
    padded = torch.zeros(64, 96)
    padded[:37, :45] = x
    ragged, whole = quantize(x, PARTIAL[name]), quantize(padded, FORMATS[name])
    assert torch.equal(dequantize(ragged), dequantize(whole)[:37, :45])
    rows, columns = ragged.scale.shape
    assert torch.equal(ragged.scale_codes, whole.scale_codes[:rows, :columns])


def test_the_unused_half_of_a_last_byte_is_zero():
    q = quantize(torch.full((3, 5), -6.0), MXFP4((1, 32), ragged="partial"))
    assert q.codes.tolist() == [[0xFF, 0xFF, 0x0F]] * 3


@pytest.mark.parametrize("fmt", PARTIAL.values(), ids=PARTIAL)
@pytest.mark.parametrize("shape", [(2, 40, 33), (2, 3, 64, 32), (0, 32, 32), (2, 0, 64), (3, 1, 1)])
def test_matrices_of_more_dimensions_are_quantized_one_by_one(fmt, shape):
    x = random(*shape)
    result = quantize(x, fmt)
    assert tuple(result.scale.shape) == fmt.grid_shape(shape)
    values = dequantize(result)
    for index in itertools.product(*map(range, shape[:-2])):
        alone = quantize(x[index], fmt)
        assert torch.equal(alone.codes, result.codes[index])
        assert torch.equal(alone.scale_codes, result.scale_codes[index])
        assert torch.equal(dequantize(alone), values[index])


def test_a_vector_is_one_row():
    x = random(96)
    one, two = quantize(x, MXFP8()), quantize(x.unsqueeze(0), MXFP8())
    assert torch.equal(one.codes, two.codes[0])
    assert torch.equal(one.scale_codes, two.scale_codes[0])
    assert torch.equal(dequantize(one), dequantize(two)[0])


@pytest.mark.parametrize("fmt", PARTIAL.values(), ids=PARTIAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_strides_change_nothing(dtype, fmt):
    cube = random(4, 96, 160, dtype=dtype)
    views = (
        cube.transpose(0, 1).transpose(1, 2),
        cube[:, ::2],
        cube[1:3, 32:, 64:128],
        cube[0].t(),
        cube[:, 32:, 96:][2],
        cube[0, :1].expand(64, 160),
    )
    for view in views:
        assert_same(quantize(view, fmt), quantize(view.contiguous(), fmt))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_out_is_filled_in_place_even_if_strided(fmt):
    x = random(2, 96, 96)
    stored, grid = fmt.data_shape(x.shape), fmt.grid_shape(x.shape)
    data = torch.zeros(stored[1], stored[0], 2 * stored[2], dtype=torch.uint8)
    codes = torch.zeros(grid[2], grid[1], grid[0], dtype=torch.uint8)
    out = MXTensor(
        data.transpose(0, 1)[..., ::2].view(fmt.element.dtype),
        codes.permute(2, 1, 0).view(torch.float8_e8m0fnu),
        fmt,
        x.shape,
    )
    assert quantize(x, fmt, out=out) is out
    assert_same(out, quantize(x, fmt))
    assert torch.equal(data.transpose(0, 1)[..., ::2], quantize(x, fmt).codes)
    assert not data[..., 1::2].any()
    values = torch.zeros(96, 2, 96).transpose(0, 1)
    assert dequantize(out, out=values) is values
    assert torch.equal(values, dequantize(quantize(x, fmt)))


def test_one_grid_serves_the_transpose():
    x = random(64, 96)
    one, two = quantize(x, MXFP8((32, 32))), quantize(x.t(), MXFP8((32, 32)))
    assert_same(one.mT, two)


def test_a_leaf_of_autograd_is_quantized_without_recording():
    x = random(32, 32).requires_grad_()
    assert_same(quantize(x, MXFP8()), quantize(x.detach(), MXFP8()))


class LargestAllocation(TorchDispatchMode):
    """Bytes of the largest storage that an operation creates."""

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        old = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for value in [result] if isinstance(result, torch.Tensor) else []:
            if value.untyped_storage().data_ptr() not in old and "out" not in (kwargs or {}):
                self.nbytes = max(self.nbytes, value.untyped_storage().nbytes())
        return result


CASES = [
    *itertools.product(FORMATS.values(), [torch.float32], [None]),
    (FORMATS["e4m3 32x32"], torch.float64, None),
    (FORMATS["e2m1 1x32"], torch.bfloat16, None),
    (FORMATS["e4m3 1x32"], torch.float32, Stochastic(0)),
    (FORMATS["e2m1 32x1"], torch.float64, Stochastic(0)),
]


@pytest.mark.parametrize(("fmt", "dtype", "rounding"), CASES)
@pytest.mark.parametrize("shape", [(480, 192), (32, 192 * 16), (2, 32, 192 * 8)])
def test_temporaries_do_not_grow_with_the_tensor(monkeypatch, fmt, dtype, rounding, shape):
    monkeypatch.setattr(geometry, "CHUNK", 1 << 12)
    fmt = type(fmt)(fmt.block, fmt.element, ragged="partial")
    x = torch.ones(shape, dtype=dtype)
    out = MXTensor.empty(shape, fmt)
    quantize(x[..., :32, :96], fmt)  # tables are made once
    with LargestAllocation() as seen:
        quantize(x, fmt, rounding=rounding, out=out)
    assert 0 < seen.nbytes <= 8 * geometry.CHUNK < x.nbytes
