"""The work on one chunk: block maxima, and elements from given scales, on CPUs."""

from functools import cache

import torch
from torch import Tensor

from sshsdp_mxfp import bits, scales
from sshsdp_mxfp.elements import Element
from sshsdp_mxfp.formats import Format
from sshsdp_mxfp.geometry import Part, Rectangle
from sshsdp_mxfp.rounding import Stochastic

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# torch's own casts round these to nearest even, subnormals included; tests compare them to `bits`.
_CUT = 17
_CASTS = (torch.float8_e4m3fn, torch.float8_e5m2)


class Caster:
    """Turns parts of matrices into elements; its buffers are reused from chunk to chunk."""

    def __init__(
        self,
        fmt: Format,
        dtype: torch.dtype,
        rounding: Stochastic | None,
    ) -> None:
        self._element, self._rounding = fmt.element, rounding
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._widen = dtype != self._dtype
        self._saturates = fmt.rule in ("floor", "even")
        self._buffers: dict[str, Tensor] = {}

    def widen(self, source: Tensor, part: Part) -> Tensor:
        """The part as float32 or float64 [row blocks, rows, column blocks, columns].

        A view of `source`, or overwritten by the next call.
        """
        blocks = by_block(source, part.block)
        return self._buffer("wide", blocks).copy_(blocks) if self._widen else blocks

    def maxima(self, wide: Tensor) -> Tensor:
        """Bits of block maxima [row blocks, 1, column blocks, 1].

        Maxima of integers have the same order, and are faster, as NaN is nothing special.
        """
        magnitudes = torch.abs(wide, out=self._buffer("scaled", wide))
        result = magnitudes.view(scales.INTEGERS[self._dtype])
        if result.shape[1] > 1:
            result = result.amax(1, keepdim=True)
        return result.amax(-1, keepdim=True) if result.shape[-1] > 1 else result.clone()

    def cast(self, wide: Tensor, codes: Tensor, data: Tensor, place: Rectangle) -> None:
        """Write elements.

        Args:
            wide: as from `widen`.
            codes: int32 scale codes [row blocks, 1, column blocks, 1].
            data: stored elements of the part, a matrix of the element's dtype.
            place: the part in the logical tensor, rows counted through all its matrices.
        """
        scaled = self._buffer("scaled", wide)
        torch.mul(wide, scales.multipliers(codes, self._dtype), out=scaled)
        special = int(codes.max()) >= scales.CODE_OF_INF
        element, block = self._element, (wide.shape[1], wide.shape[3])
        if self._rounding is None and element.dtype in _CASTS:
            if special or self._saturates:
                # What casts do out of range differs between formats and versions of torch.
                scaled.clamp_(-element.largest, element.largest)
            by_block(data, block).copy_(self._single(scaled))
            result = by_block(data.view(torch.uint8), block)
        else:
            result = self._encode(self._single(scaled), place)
        if special:
            result.masked_fill_(codes == scales.CODE_OF_NAN, element.code_of_nan)
        if element.per_byte > 1:
            data.view(torch.uint8).copy_(packed(result.view(place.height, place.width)))
        elif element.dtype not in _CASTS or self._rounding is not None:
            by_block(data.view(torch.uint8), block).copy_(result)

    def _encode(self, scaled: Tensor, place: Rectangle) -> Tensor:
        """Codes of scaled elements as a new tensor."""
        element, patterns = self._element, scaled.view(torch.int32)
        if self._rounding is None:
            return nearest(patterns, element)
        numbers = self._rounding.numbers(place).bitwise_and_((1 << 30) - 1).to(torch.int32)
        shape = element.exponent_bits, element.mantissa_bits, element.largest_code
        codes = bits.encode_stochastic(patterns, numbers.view(patterns.shape), *shape)
        return codes.to(torch.uint8)

    def _single(self, scaled: Tensor) -> Tensor:
        """The same as float32, such that rounding it further is as rounding `scaled`."""
        return rounded_to_odd(scaled) if self._dtype == torch.float64 else scaled

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """A contiguous tensor of a chunk's shape."""
        if name not in self._buffers or self._buffers[name].numel() < like.numel():
            self._buffers[name] = torch.empty(like.numel(), dtype=self._dtype)
        return self._buffers[name][: like.numel()].view(like.shape)


def nearest(patterns: Tensor, element: Element) -> Tensor:
    """`bits.encode` by looking its results up.

    Cutting a float to its upper 15 bits, with the last one set if anything was lost, leaves it on
    the same side of everything that rounding to at most 3 bits of mantissa distinguishes.

    Args:
        patterns: float32 bits, int32.
        element: of at most 3 bits of mantissa.

    Returns:
        uint8 codes of the same shape.
    """
    lost = (1 << _CUT) - 1
    index = (patterns & lost).add_(lost).bitwise_or_(patterns)
    index.bitwise_right_shift_(_CUT).bitwise_and_(len(_nearest(element)) - 1)
    return _nearest(element).index_select(0, index.flatten()).view(index.shape)


@cache
def _nearest(element: Element) -> Tensor:
    """Codes of all floats that are zero below their upper bits."""
    patterns = torch.arange(1 << (32 - _CUT)).bitwise_left_shift_(_CUT).to(torch.int32)
    shape = element.exponent_bits, element.mantissa_bits, element.largest_code
    return bits.encode(patterns, *shape).to(torch.uint8)


def by_block(matrix: Tensor, block: tuple[int, int]) -> Tensor:
    """A matrix as [row blocks, rows, column blocks, columns]: a view, whatever the strides."""
    (height, width), (rows, columns) = matrix.shape, block
    return matrix.view(height // rows, rows, width // columns, columns)


def packed(codes: Tensor) -> Tensor:
    """Two codes of 4 bits per byte, the first in the low half; an odd last one stands alone.

    Args:
        codes: uint8 [rows, columns].

    Returns:
        uint8 [rows, ceil(columns / 2)].
    """
    result = codes[:, ::2].clone()
    result[:, : codes.shape[1] // 2].bitwise_or_(codes[:, 1::2] << 4)
    return result


def rounded_to_odd(x: Tensor) -> Tensor:
    """float64 as float32 such that a later rounding to fewer bits is as if it were the only one.

    The mantissa is cut, and its last bit set if anything was lost: no tie is made or hidden.
    Overwrites x.
    """
    pattern = x.view(torch.int64)
    lost = (1 << 29) - 1
    inexact = (pattern & lost).ne_(0)
    pattern.bitwise_and_(~lost).bitwise_or_(inexact.mul_(1 << 29))
    return x.to(torch.float32)
