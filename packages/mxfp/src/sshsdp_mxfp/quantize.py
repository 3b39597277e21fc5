"""Quantization to E4M3 with one E8M0 scale per block."""

import torch
from torch import Tensor

from sshsdp_mxfp import scales
from sshsdp_mxfp.chunks import chunks
from sshsdp_mxfp.tensor import MXTensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LARGEST = 448.0
NAN_BYTE = 0x7F


def quantize(x: Tensor, block: tuple[int, int], *, out: MXTensor | None = None) -> MXTensor:
    """Quantize a tensor block by block.

    A block's scale is the smallest power of two at which its largest magnitude still fits into
    E4M3 (RCEIL). Elements are divided by it exactly and then rounded once, ties to even; no finite
    element up to 448 * 2^127 saturates. Special cases:

    - An infinity gives the block scale 2^127 (code 254) and becomes the largest element (byte 0x7E
      or 0xFE); float64 blocks beyond 448 * 2^127 saturate likewise.
    - A NaN makes the whole block NaN: scale code 255, every byte 0x7F.
    - Zeros keep their sign; a block of zeros has scale code 0.
    - Magnitudes up to 448 * 2^-127 have scale 2^-127 (code 0), the smallest there is.

    Works in chunks: temporaries don't grow with the tensor.

    Args:
        x: float32, float64, bfloat16 or float16 on the CPU, any strides; a matrix, or for blocks of
            1x32 any number of dimensions, of which the last is cut.
        block: (32, 32) or (1, 32).
        out: where to write to, of x's shape and the same block.

    Returns:
        `out`, or a new tensor.

    Raises:
        ValueError: if sizes are no multiples of the block; for another dtype, device, block or
            another shape of `out`.
    """
    if x.dtype not in FLOATS:
        names = ", ".join(str(dtype) for dtype in FLOATS)
        raise ValueError(f"expected a tensor of {names}, got {x.dtype}")
    if x.device.type != "cpu":
        raise ValueError(f"expected a tensor on the CPU, got {x.device}; move it with .cpu()")
    if out is None:
        out = MXTensor.empty(x.shape, block)
    elif out.shape != x.shape or out.block != block:
        raise ValueError(
            f"expected out of shape {list(x.shape)} in blocks {block}, "
            f"got {list(out.shape)} in blocks {out.block}; make it by MXTensor.empty"
        )
    if x.numel():
        workspace = _Workspace(x.dtype)
        codes = out.scale.view(torch.uint8)
        for source, data, code in chunks(x.detach(), out.data, codes, block):
            workspace.quantize(source, data, code)
    return out


class _Workspace:
    """Buffers of one chunk, reused for all chunks of a tensor."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._integer = torch.int64 if dtype == torch.float64 else torch.int32
        self._widen = dtype != self._dtype
        self._buffers: dict[str, Tensor] = {}

    def quantize(self, source: Tensor, data: Tensor, codes: Tensor) -> None:
        """Fill `data` and `codes` from a chunk [row blocks, rows, column blocks, columns]."""
        wide = self._buffer("wide", source).copy_(source) if self._widen else source
        scaled = self._buffer("scaled", source)
        # Maxima of integers: the same order, and faster, as NaN is nothing special.
        amax = torch.abs(wide, out=scaled).view(self._integer)
        if amax.shape[1] > 1:
            amax = amax.amax(1, keepdim=True)
        codes.copy_(scales.round_up(amax.amax(-1, keepdim=True)))
        torch.mul(wide, scales.multipliers(codes, self._dtype), out=scaled)
        special = int(codes.max()) >= scales.CODE_OF_INF
        if special:
            # What casts do out of range differs between versions of torch.
            scaled.clamp_(-LARGEST, LARGEST)
        data.copy_(_rounded_to_odd(scaled) if self._dtype == torch.float64 else scaled)
        if special:
            data.view(torch.uint8).masked_fill_(codes == scales.CODE_OF_NAN, NAN_BYTE)

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """A contiguous tensor of a chunk's shape; the first chunk is the largest."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty(like.numel(), dtype=self._dtype)
        return self._buffers[name][: like.numel()].view(like.shape)


def _rounded_to_odd(x: Tensor) -> Tensor:
    """float64 as float32 such that a later rounding to fewer bits is as if it were the only one.

    The mantissa is cut, and its last bit set if anything was lost: no tie is made or hidden.
    Overwrites x.
    """
    bits = x.view(torch.int64)
    lost = (1 << 29) - 1
    inexact = (bits & lost).ne_(0)
    bits.bitwise_and_(~lost).bitwise_or_(inexact.mul_(1 << 29))
    return x.to(torch.float32)
