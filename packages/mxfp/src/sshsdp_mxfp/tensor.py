"""Quantized tensors: elements and the scales of their blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from sshsdp_mxfp import slices
from sshsdp_mxfp.elements import ELEMENTS
from sshsdp_mxfp.formats import MXFP4, MXFP6, MXFP8, Format, Ragged, Rule

SCALE = torch.float8_e8m0fnu
_FORMATS = {kind.__name__: kind for kind in (MXFP8, MXFP6, MXFP4)}


@dataclass(frozen=True, eq=False, repr=False)
class MXTensor:
    """Elements of few bits with one power-of-two scale per block: value = element * scale.

    Attributes:
        data: the elements, `format.element.dtype`, of shape `format.data_shape(shape)`: the logical
            shape, or half as many bytes in the last dimension where two elements share one.
        scale: float8_e8m0fnu of shape `format.grid_shape(shape)`: [rows / 32, columns / 32] for
            blocks of 32x32. Code b stands for 2^(b - 127), 255 for NaN.
        format: how it was cut, scaled and rounded.
        shape: the logical shape.
    """

    data: Tensor
    scale: Tensor
    format: Format
    shape: torch.Size

    def __post_init__(self) -> None:
        element = self.format.element
        object.__setattr__(self, "shape", torch.Size(self.shape))
        _expect_dtype("data", self.data, element.dtype)
        _expect_dtype("scales", self.scale, SCALE)
        _expect_shape("data", self.data, self.format.data_shape(self.shape), self)
        _expect_shape("scales", self.scale, self.format.grid_shape(self.shape), self)
        if self.data.device != self.scale.device:
            raise ValueError(
                f"expected data and scales on one device, got {self.data.device} and "
                f"{self.scale.device}"
            )

    @classmethod
    def empty(
        cls,
        shape: Sequence[int],
        fmt: Format,
        *,
        device: torch.device | str | None = None,
    ) -> Self:
        """A tensor with undefined contents, to quantize into.

        Raises:
            ValueError: if the shape doesn't suit the format.
        """
        grid, stored = fmt.grid_shape(shape), fmt.data_shape(shape)
        scale = torch.empty(grid, dtype=torch.uint8, device=device).view(SCALE)
        data = torch.empty(stored, dtype=torch.uint8, device=device).view(fmt.element.dtype)
        return cls(data, scale, fmt, torch.Size(shape))

    @property
    def codes(self) -> Tensor:
        """The elements as bytes: a view, uint8."""
        return self.data.view(torch.uint8)

    @property
    def scale_codes(self) -> Tensor:
        """The scales as bytes: a view, uint8."""
        return self.scale.view(torch.uint8)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Bytes of elements and scales together."""
        return int(self.data.nbytes + self.scale.nbytes)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values; see `sshsdp_mxfp.dequantize`."""
        from sshsdp_mxfp.dequantize import dequantize  # it needs this module

        return dequantize(self, dtype)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same on another device; this object itself where it is there already."""
        if torch.device(device) == self.device:
            return self
        return self._map(lambda part: part.to(device, non_blocking=non_blocking))

    def clone(self) -> Self:
        """A copy that shares no memory."""
        return self._map(torch.clone)

    def __getitem__(self, index: slices.Index) -> Self:
        """A part that consists of whole blocks, as a view: ``q[32:64]``, ``q[:, :128]``, ``q[3]``.

        Slices are in logical elements. They begin at blocks, and end at blocks or at the end of
        the dimension. Integers select in dimensions that aren't cut into blocks.

        Raises:
            ValueError: if a slice cuts a block.
        """
        steps = (*(1 for _ in self.shape[:-2]), *self.format.block)[-len(self.shape) :]
        parts = slices.resolve(index, self.shape, steps, self.format.element.per_byte)
        return type(self)(
            self.codes[parts.data].view(self.data.dtype),
            self.scale_codes[parts.grid].view(SCALE),
            self.format,
            parts.shape,
        )

    @property
    def mT(self) -> Self:  # noqa: N802
        """The last two dimensions exchanged, as a view: blocks of 1x32 become 32x1.

        Raises:
            ValueError: for elements that share bytes, which can't be exchanged in place.
        """
        if self.format.element.per_byte > 1:
            raise ValueError(
                f"expected elements of whole bytes to transpose, got {self.format.element}; "
                f"quantize the transposed tensor"
            )
        if len(self.shape) < 2:
            raise ValueError(f"expected at least 2 dimensions, got shape {list(self.shape)}")
        kind = type(self.format)
        rows, columns = self.format.block
        turned = kind((columns, rows), self.format.element, self.format.rule, self.format.ragged)
        *leading, height, width = self.shape
        shape = torch.Size((*leading, width, height))
        return type(self)(self.data.mT, self.scale.mT, turned, shape)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        codes, scale_codes = change(self.codes), change(self.scale_codes)
        data, scale = codes.view(self.data.dtype), scale_codes.view(SCALE)
        return type(self)(data, scale, self.format, self.shape)

    def __repr__(self) -> str:
        size = f"{self.nbytes} bytes on {self.device}"
        return f"MXTensor({list(self.shape)}, {self.format}, {self._range()}, {size})"

    def _range(self) -> str:
        """The scales in short; not read from other devices, which would have to be waited for."""
        if self.device.type != "cpu" or not self.scale.numel():
            return "scales unread"
        finite = self.scale_codes[self.scale_codes != 255]
        lost = self.scale.numel() - finite.numel()
        nan = f", {lost} of NaN" if lost else ""
        if not finite.numel():
            return "scales NaN"
        low, high = int(finite.min()) - 127, int(finite.max()) - 127
        return f"scales 2^{low}" + (f"..2^{high}" if high > low else "") + nan

    def __reduce__(self) -> tuple[Any, ...]:
        """Plain values and bytes, so that files stay readable by other versions."""
        kind, format_ = type(self.format).__name__, self.format
        description = (kind, format_.block, format_.element.name, format_.rule, format_.ragged)
        return load, (self.codes, self.scale_codes, description, tuple(self.shape))


def load(
    codes: Tensor,
    scale_codes: Tensor,
    description: tuple[str, tuple[int, int], str, Rule, Ragged],
    shape: tuple[int, ...],
) -> MXTensor:
    """What `torch.load` calls to make a saved tensor anew."""
    kind, block, element, rule, ragged = description
    format_ = _FORMATS[kind](block, ELEMENTS[element], rule, ragged)
    data, scale = codes.view(format_.element.dtype), scale_codes.view(SCALE)
    return MXTensor(data, scale, format_, torch.Size(shape))


# torch.load reads files of data only, unless it knows that a name is harmless.
torch.serialization.add_safe_globals([load])


def _expect_dtype(what: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        hint = f"; a uint8 tensor of codes becomes one by .view({dtype})"
        raise ValueError(
            f"expected {what} of {dtype}, got {tensor.dtype}"
            + (hint if tensor.dtype == torch.uint8 else "")
        )


def _expect_shape(what: str, tensor: Tensor, shape: tuple[int, ...], owner: MXTensor) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"expected {what} of shape {list(shape)} for a tensor of {list(owner.shape)} as "
            f"{owner.format}, got {list(tensor.shape)}"
        )
