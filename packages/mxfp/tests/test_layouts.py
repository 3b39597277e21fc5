"""Shapes, strides, chunk borders and preallocated outputs change no byte."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sshsdp_mxfp import MXTensor, chunks, dequantize, quantize


def random(*shape, dtype=torch.float32):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return (values * torch.exp2(torch.arange(shape[-1]) % 23)).to(dtype)


def parts(q):
    return q.data.view(torch.uint8), q.scale.view(torch.uint8)


def assert_same(left, right):
    for one, two in zip(parts(left), parts(right), strict=True):
        assert torch.equal(one, two)


def block_by_block(x, block):
    """Each block quantized alone."""
    rows, columns = block
    out = MXTensor.empty(x.shape, block)
    for i in range(x.shape[0] // rows):
        for j in range(x.shape[1] // columns):
            place = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            alone = quantize(x[place].contiguous(), block)
            parts(out)[0][place] = parts(alone)[0]
            parts(out)[1][i, j] = parts(alone)[1].item()
    return out


@given(
    block=st.sampled_from([(1, 32), (32, 32)]),
    rows=st.integers(0, 4),
    columns=st.integers(0, 6),
    chunk=st.integers(1, 20).map(lambda count: count * 512),
)
def test_chunk_borders_change_nothing(block, rows, columns, chunk):
    x = random(rows * block[0], columns * 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", chunk)
        result = quantize(x, block)
        values = dequantize(result)
    assert_same(result, block_by_block(x, block))
    assert torch.equal(values, dequantize(result))
    assert result.shape == values.shape == x.shape


@pytest.mark.parametrize("shape", [(32,), (3, 32), (2, 3, 64), (2, 1, 3, 96), (0, 32), (2, 0, 64)])
def test_rows_of_any_number_of_dimensions(shape):
    x = random(*shape)
    result = quantize(x, (1, 32))
    matrix = quantize(x.reshape(-1, shape[-1]), (1, 32))
    assert tuple(result.scale.shape) == (*shape[:-1], shape[-1] // 32)
    assert_same(
        MXTensor(result.data.view(matrix.shape), result.scale.view(matrix.scale.shape), (1, 32)),
        matrix,
    )
    assert torch.equal(dequantize(result), dequantize(matrix).view(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_strides_change_nothing(dtype):
    cube = random(4, 64, 96, dtype=dtype)
    for view in (cube.transpose(0, 1), cube[:, ::2], cube[1:3, :, 32:64], cube.expand(4, 64, 96)):
        assert_same(quantize(view, (1, 32)), quantize(view.contiguous(), (1, 32)))
    for view in (cube[0].t(), cube[:, 32:, 64:][2], cube[0, :1].expand(32, 96)):
        assert_same(quantize(view, (32, 32)), quantize(view.contiguous(), (32, 32)))


def test_one_grid_serves_the_transpose():
    x = random(64, 96)
    one, two = quantize(x, (32, 32)), quantize(x.t(), (32, 32))
    assert torch.equal(parts(one)[0], parts(two)[0].t())
    assert torch.equal(parts(one)[1], parts(two)[1].t())


@pytest.mark.parametrize("block", [(1, 32), (32, 32)])
def test_out_is_filled_in_place_even_if_strided(block):
    x = random(64, 128)
    data = torch.zeros(64, 256, dtype=torch.uint8)
    codes = torch.zeros(4, 64 // block[0], dtype=torch.uint8)
    out = MXTensor(
        data[:, ::2].view(torch.float8_e4m3fn), codes.t().view(torch.float8_e8m0fnu), block
    )
    assert quantize(x, block, out=out) is out
    assert_same(out, quantize(x, block))
    assert torch.equal(data[:, ::2], parts(out)[0])
    assert not data[:, 1::2].any()


def test_out_of_any_number_of_dimensions_is_filled_in_place_even_if_strided():
    x = random(6, 5, 64).transpose(0, 1)
    data, codes = (torch.zeros(6, 5, size, dtype=torch.uint8) for size in (64, 2))
    out = MXTensor(
        data.transpose(0, 1).view(torch.float8_e4m3fn),
        codes.transpose(0, 1).view(torch.float8_e8m0fnu),
        (1, 32),
    )
    assert_same(quantize(x, (1, 32), out=out), quantize(x.contiguous(), (1, 32)))
    assert torch.equal(data.transpose(0, 1), parts(out)[0])
    assert torch.equal(dequantize(out), dequantize(quantize(x, (1, 32))))


def test_a_leaf_of_autograd_is_quantized_without_recording():
    x = random(32, 32).requires_grad_()
    assert_same(quantize(x, (32, 32)), quantize(x.detach(), (32, 32)))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4096, 1024), (32, 4096 * 32), (2, 4096 * 512)])
def test_temporaries_do_not_grow_with_the_tensor(dtype, shape):
    block = (1, 32) if shape[0] == 2 else (32, 32)
    x = torch.ones(shape, dtype=dtype)
    out = MXTensor.empty(shape, block)
    with LargestAllocation() as seen:
        quantize(x, block, out=out)
    assert 0 < seen.nbytes <= 8 * chunks.CHUNK < x.nbytes
