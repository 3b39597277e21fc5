"""Values of quantized tensors."""

import torch
from torch import Tensor

from sshsdp_mxfp import bits, scales
from sshsdp_mxfp.caster import FLOATS, by_block
from sshsdp_mxfp.elements import ELEMENTS, Element
from sshsdp_mxfp.geometry import Part, Rectangle, parts
from sshsdp_mxfp.kernels import dequantize as kernels
from sshsdp_mxfp.matrices import matrices
from sshsdp_mxfp.quantize import CPU_OR_CUDA, check_place
from sshsdp_mxfp.tensor import MXTensor


def dequantize(
    t: MXTensor, dtype: torch.dtype = torch.float32, *, out: Tensor | None = None
) -> Tensor:
    """The values of a quantized tensor.

    Every value is exact in float64, and in float32 unless it is 2^128 or more (infinity then; for
    E4M3 a scale code of 247 or more is needed for that). In bfloat16 values of E4M3 with scale
    codes from 3 to 246 are exact, others are rounded to nearest even, as is everything in float16.

    Args:
        t: the quantized tensor, on the CPU or a CUDA device.
        dtype: float32, bfloat16 or float16, on the CPU also float64.
        out: where to write to, of t's shape and this dtype; any strides.

    Returns:
        `out`, or a new contiguous tensor of t's shape.

    Raises:
        ValueError: for another dtype or device, or an `out` of another shape or dtype.
        TypeError: for a t that is no MXTensor.
        MissingTritonError: for a CUDA tensor where Triton isn't installed.
    """
    if dtype not in FLOATS:
        names = ", ".join(str(known) for known in FLOATS)
        raise ValueError(f"expected one of {names}, got {dtype}")
    if not isinstance(t, MXTensor):
        raise TypeError(f"expected an MXTensor, got {type(t).__name__}; quantize makes one")
    check_place(t.device, CPU_OR_CUDA)
    if out is None:
        out = torch.empty(t.shape, dtype=dtype, device=t.device)
    elif out.shape != t.shape or out.dtype != dtype or out.device != t.device:
        raise ValueError(
            f"expected out of shape {list(t.shape)}, {dtype}, on {t.device}, got "
            f"{list(out.shape)}, {out.dtype}, on {out.device}"
        )
    if not out.numel():
        return out
    if out.is_cuda:
        for launch in kernels.prepare(t, out):
            launch.run()
        return out
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    element = t.format.element
    for _, (values, data, grid) in matrices(t.format.rows, out.detach(), t.codes, t.scale_codes):
        whole = Rectangle(0, values.shape[0], 0, values.shape[1])
        for part in parts(whole, t.format.block, element.per_byte):
            tiles = part.tiles
            codes = grid[tiles.top : tiles.bottom, tiles.left : tiles.right].to(torch.int32)
            factors = scales.values(codes, wide)[:, None, :, None]
            product = by_block(_plain(data, part, element, wide), part.block).mul_(factors)
            target = values[part.top : part.bottom, part.left : part.right]
            by_block(target, part.block).copy_(product)
    return out


def _plain(data: Tensor, part: Part, element: Element, dtype: torch.dtype) -> Tensor:
    """Elements of a part without their scales, a new contiguous matrix of float32 or float64."""
    rows = slice(part.top, part.bottom)
    if element.per_byte > 1:
        stored = data[rows, part.left // 2 : -(-part.right // 2)]
        pairs = _PAIRS[element].index_select(0, stored.flatten().to(torch.int32))
        return pairs.view(part.height, -1)[:, : part.width].to(dtype, copy=True).contiguous()
    stored = data[rows, part.left : part.right]
    # Faster than a cast from 8 bits, and the same for all.
    plain = _TABLES[element].index_select(0, stored.flatten().to(torch.int32))
    return plain.view(part.height, part.width).to(dtype)


def _table(element: Element) -> Tensor:
    """Values of all codes."""
    codes = torch.arange(1 << element.bits, dtype=torch.int32)
    shape = element.exponent_bits, element.mantissa_bits, element.largest_code
    return bits.decode_bits(codes, *shape).view(torch.float32)


def _pairs(element: Element) -> Tensor:
    """Values of all bytes of two codes, [256, 2]."""
    table = _table(element)
    return torch.stack([table.repeat(16), table.repeat_interleave(16)], 1)


_TABLES = {element: _table(element) for element in ELEMENTS.values() if element.per_byte == 1}
_PAIRS = {element: _pairs(element) for element in ELEMENTS.values() if element.per_byte == 2}
