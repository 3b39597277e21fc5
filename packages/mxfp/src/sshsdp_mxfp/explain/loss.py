"""What one format loses of a tensor."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sshsdp_mxfp.dequantize import dequantize
from sshsdp_mxfp.explain.pieces import pieces
from sshsdp_mxfp.explain.summary import Summary
from sshsdp_mxfp.formats import Format
from sshsdp_mxfp.quantize import quantize
from sshsdp_mxfp.tensor import MXTensor


@dataclass(frozen=True)
class Loss:
    """Errors and counts of one format. Only finite elements count, but for `lost`.

    Attributes:
        format: how the tensor was quantized.
        numel: elements of the tensor.
        bits: stored per element, scales included. A code of 6 bits takes a byte.
        noise: sum of squares of errors.
        power: sum of squares of the elements, in the same unit.
        worst: the largest error of an element, as a fraction of the largest magnitude of its block.
        saturated: elements beyond the largest value of their block.
        vanished: elements that became 0 and weren't.
        subnormal: elements that became subnormal codes, which have fewer bits of precision.
        lost: elements that aren't NaN in blocks that hold one.
        scales: how many blocks have each scale code, 256 numbers.
    """

    format: Format
    numel: int
    bits: float
    noise: float
    power: float
    worst: float
    saturated: int
    vanished: int
    subnormal: int
    lost: int
    scales: tuple[int, ...]

    @property
    def rms(self) -> float:
        """Root of the mean square of errors over that of the elements."""
        return math.sqrt(self.noise / self.power) if self.power else 0.0

    @property
    def decibels(self) -> float:
        """Signal to noise: -20 log10 of `rms`; infinite where nothing is lost."""
        return -20 * math.log10(self.rms) if self.rms else math.inf


def measure(
    x: Tensor, fmt: Format, summary: Summary, tick: Callable[[int], None] = lambda _: None
) -> Loss:
    """Quantize a tensor in chunks and compare.

    Args:
        x: float32, float64, bfloat16 or float16, on the CPU.
        fmt: any that fits the shape.
        summary: of the same tensor.
        tick: called with the number of elements after every chunk.

    Raises:
        ValueError: as `quantize` raises.
    """
    fmt.check(x.shape)
    stored = math.prod(fmt.data_shape(x.shape)) + math.prod(fmt.grid_shape(x.shape))
    sums = torch.zeros(2, dtype=torch.float64)
    counts = torch.zeros(4, dtype=torch.int64)
    scales = torch.zeros(256, dtype=torch.int64)
    worst = 0.0
    for part in pieces(x.detach(), fmt.block):
        found = _compare(part, quantize(part, fmt), summary.unit)
        sums += found.sums
        counts += found.counts
        scales += found.scales
        worst = max(worst, found.worst)
        tick(part.numel())
    noise, power = sums.tolist()
    saturated, vanished, subnormal, lost = counts.tolist()
    bits = 8 * stored / x.numel()
    return Loss(
        *(fmt, x.numel(), bits, noise, power, worst),
        *(saturated, vanished, subnormal, lost, tuple(scales.tolist())),
    )


@dataclass(frozen=True)
class _Piece:
    """Of a chunk: noise and power; saturated, vanished, subnormal and lost; scales; the worst."""

    sums: Tensor
    counts: Tensor
    scales: Tensor
    worst: float


def _compare(x: Tensor, q: MXTensor, unit: float) -> _Piece:
    element = q.format.element
    values, plain = dequantize(q, torch.float64), x.to(torch.float64)
    kept = plain.isfinite() & values.isfinite()
    nothing = torch.zeros((), dtype=torch.float64)
    plain, values = torch.where(kept, plain, nothing), torch.where(kept, values, nothing)
    error = (values - plain).abs_()
    magnitudes = plain.abs()
    codes = element_codes(q) & ((1 << (element.bits - 1)) - 1)
    smaller = values.abs() < magnitudes
    counts = [
        (codes == element.largest_code) & smaller,
        (values == 0) & (magnitudes > 0),
        (codes > 0) & (codes < 1 << element.mantissa_bits) & kept,
        x.isfinite() & ~kept,
    ]
    share = error / block_maxima(magnitudes, q.format.block).clamp(min=_TINY)
    return _Piece(
        torch.stack([(part / unit).square_().sum() for part in (error, plain)]),
        torch.stack([count.sum() for count in counts]),
        q.scale_codes.flatten().bincount(minlength=256),
        float(share.max()),
    )


def element_codes(q: MXTensor) -> Tensor:
    """Codes of elements, uint8 of the logical shape, also where two share a byte."""
    if q.format.element.per_byte == 1:
        return q.codes
    both = torch.stack([q.codes & 15, q.codes >> 4], -1).flatten(-2)
    return both[..., : q.shape[-1]]


def block_maxima(magnitudes: Tensor, block: tuple[int, int]) -> Tensor:
    """The largest magnitude of its block for each element; blocks at the edges may be smaller.

    Args:
        magnitudes: of at least one dimension, none below 0.
        block: rows and columns in the last two dimensions.

    Returns:
        The same shape and dtype; memory may be shared between elements.
    """
    matrix = magnitudes.unsqueeze(0) if magnitudes.ndim == 1 else magnitudes
    (height, width), (rows, columns) = matrix.shape[-2:], block
    whole = pad(matrix, (0, -width % columns, 0, -height % rows))
    down, across = whole.shape[-2] // rows, whole.shape[-1] // columns
    tiles = whole.reshape(*whole.shape[:-2], down, rows, across, columns)
    largest = tiles.amax((-3, -1), keepdim=True).expand_as(tiles).reshape(whole.shape)
    return largest[..., :height, :width].reshape(magnitudes.shape)


_TINY = 5e-324
