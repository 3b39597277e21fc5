"""Matrices of jobs, and what their kernel is compiled for."""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from sshsdp_mxfp import scales
from sshsdp_mxfp.elements import E4M3, E5M2
from sshsdp_mxfp.kernels.jobs import QuantizeJob
from sshsdp_mxfp.kernels.planes import Order, Plane
from sshsdp_mxfp.rounding import Stochastic

_WIDTH, _TILE = 128, 4096  # columns and elements of a tile; more only for large blocks
_NAMES = (("data", "scale"), ("other", "other_scale"))


def tile_shape(*blocks: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the tile that a program works on, such that it has whole blocks."""
    width = max(_WIDTH, *(columns for _, columns in blocks))
    return max(_TILE // width, *(rows for rows, _ in blocks)), width


def tiles(matrix: Tensor, height: int, width: int) -> tuple[int, int]:
    """All tiles of a matrix, and those side by side."""
    rows, columns = matrix.shape
    across = -(-columns // width)
    return -(-rows // height) * across, across


def warps(height: int, width: int, aligned: bool) -> int:
    """Warps for a tile: without 128-bit accesses every element takes an address, two registers."""
    return min(height * width // (1024 if aligned else 512), 16)


def strides(name: str, matrix: Tensor) -> dict[str, int]:
    """Down and across, by the kernels' names."""
    return {f"{name}_down": matrix.stride(0), f"{name}_across": matrix.stride(1)}


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, by its names of constants."""

    height: int
    width: int
    addend: int
    exponent: int
    exponent_bits: int
    mantissa_bits: int
    largest: int
    per_byte: int
    x_order: Order
    block_rows: int
    block_columns: int
    order: Order
    other_rows: int
    other_columns: int
    other_order: Order
    stochastic: bool
    hardware: bool

    @property
    def constants(self) -> dict[str, Any]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, eq=False)
class JobMatrix:
    """One matrix of a job, ready for a kernel."""

    job: QuantizeJob
    before: int
    x: Plane
    outs: tuple[tuple[Plane, Tensor], ...]

    @property
    def aligned(self) -> bool:
        """Whether accesses of 128 bits work."""
        return self.x.aligned and all(data.aligned for data, _ in self.outs)

    def variant(self, hardware: bool) -> Variant:
        """What its kernel is compiled for."""
        fmt = self.job.out.format
        element = fmt.element
        blocks = [out.format.block for out in self.job.outs]
        second = blocks[1] if len(blocks) > 1 else (0, 0)
        return Variant(
            *tile_shape(*blocks), scales.addend(fmt, 23), element.largest_exponent,
            element.exponent_bits, element.mantissa_bits, element.largest_code, element.per_byte,
            self.x.order, *blocks[0], self.outs[0][0].order, *second, self.outs[-1][0].order,
            self.job.rounding is not None,
            hardware and self.job.rounding is None and element in (E4M3, E5M2),
        )  # fmt: skip

    def numbers(self) -> dict[str, int]:
        """Sizes and strides, by the kernel's names."""
        rows, columns = self.x.matrix.shape
        rounding = self.job.rounding or Stochastic(0)
        seed = rounding.seed - (1 << 64) if rounding.seed >> 63 else rounding.seed  # as int64
        result = {"rows": rows, "columns": columns, "stored": self.outs[0][0].matrix.shape[1]}
        result |= strides("x", self.x.matrix)
        result |= {"before": self.before, "seed": seed}
        result |= {"parameter": rounding.parameter, "ordinal": rounding.ordinal}
        for names, (data, grid) in zip(_NAMES, self._pair, strict=True):
            result |= strides(names[0], data.matrix) | strides(names[1], grid)
        return result

    def tensors(self) -> dict[str, Tensor]:
        """By the kernel's names; without a second output the first stands there unused."""
        result = {"x": self.x.matrix}
        for names, (data, grid) in zip(_NAMES, self._pair, strict=True):
            result |= {names[0]: data.matrix, names[1]: grid}
        return result

    @property
    def _pair(self) -> tuple[tuple[Plane, Tensor], tuple[Plane, Tensor]]:
        return self.outs[0], self.outs[-1]
