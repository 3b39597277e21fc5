"""Quantization to elements of few bits with one E8M0 scale per block."""

import torch
from torch import Tensor

from sshsdp_mxfp import scales
from sshsdp_mxfp.caster import FLOATS, Caster
from sshsdp_mxfp.formats import Format
from sshsdp_mxfp.geometry import Rectangle, parts
from sshsdp_mxfp.kernels import QuantizeJob
from sshsdp_mxfp.kernels import quantize as kernels
from sshsdp_mxfp.matrices import matrices
from sshsdp_mxfp.rounding import Stochastic
from sshsdp_mxfp.tensor import MXTensor

CPU_OR_CUDA = ("cpu", "cuda")


class NonFiniteError(ValueError):
    """An infinity or a NaN where only finite values were expected."""


def quantize(
    x: Tensor,
    fmt: Format,
    *,
    rounding: Stochastic | None = None,
    require_finite: bool = False,
    out: MXTensor | None = None,
) -> MXTensor:
    """Quantize a tensor block by block.

    A block's scale follows from its largest magnitude by the rule of the format. Elements are
    divided by it exactly and then rounded once; magnitudes that are too large saturate.

    | block                                   | scale code | elements                          |
    |-----------------------------------------|------------|-----------------------------------|
    | all zero                                | 0          | zeros, signs kept                 |
    | needs a scale of 2^-127 or below        | 0 (2^-127) | multiplied by exactly 2^127       |
    | holds an infinity                       | 254        | infinities saturate, sign kept    |
    | needs a scale above 2^127 (float64)     | 254        | saturate where they must          |
    | holds a NaN, also next to an infinity   | 255 (NaN)  | NaN; largest where there's no NaN |

    Works in chunks: temporaries don't grow with the tensor.

    Args:
        x: float32, float64, bfloat16 or float16, any strides, on the CPU, or but for float64 on a
            CUDA device; blocks cut the last two dimensions, or the last one where they have one
            row. On CUDA devices they are of powers of 2.
        fmt: MXFP8, MXFP6 or MXFP4.
        rounding: random numbers for stochastic rounding; None rounds to nearest, ties to even.
        require_finite: raise if there are infinities or NaN; `out` is undefined then. On a CUDA
            device it waits for the result.
        out: where to write to, of x's shape and the same format.

    Returns:
        `out`, or a new tensor.

    Raises:
        ValueError: if sizes are no multiples of the block and the format refuses those; for another
            dtype or device, or another shape or format of `out`.
        TypeError: for an x that is no tensor or a fmt that is no format.
        NonFiniteError: see `require_finite`.
        MissingTritonError: for a CUDA tensor where Triton isn't installed.
    """
    check_input(x, CPU_OR_CUDA)
    if not isinstance(fmt, Format):
        raise TypeError(f"expected a format such as MXFP8(), got {fmt!r}; make an object of it")
    if out is None:
        out = MXTensor.empty(x.shape, fmt, device=x.device)
    elif out.shape != x.shape or out.format != fmt or out.device != x.device:
        raise ValueError(
            f"expected out of shape {list(x.shape)} as {fmt} on {x.device}, got "
            f"{list(out.shape)} as {out.format} on {out.device}; make it by MXTensor.empty"
        )
    if not x.numel():
        return out
    if x.is_cuda:
        for launch in kernels.prepare([QuantizeJob(x, out, rounding=rounding)], direct=True):
            launch.run()
        if require_finite:
            check_finite_codes(out)
        return out
    caster = Caster(fmt, x.dtype, rounding)
    grain = fmt.element.per_byte
    tensors = x.detach(), out.data, out.scale_codes
    for before, (plain, data, grid) in matrices(fmt.rows, *tensors):
        for part in parts(Rectangle(0, plain.shape[0], 0, plain.shape[1]), fmt.block, grain):
            columns = slice(part.left, part.right)
            wide = caster.widen(plain[part.top : part.bottom, columns], part)
            magnitudes = caster.maxima(wide)
            if require_finite:
                check_finite(magnitudes, part, before)
            codes = scales.codes_of(magnitudes, fmt)
            tiles = part.tiles
            grid[tiles.top : tiles.bottom, tiles.left : tiles.right] = codes[:, 0, :, 0]
            stored = slice(part.left // grain, -(-part.right // grain))
            place = Rectangle(before + part.top, before + part.bottom, part.left, part.right)
            caster.cast(wide, codes, data[part.top : part.bottom, stored], place)
    return out


def check_input(x: Tensor, devices: tuple[str, ...] = ("cpu",)) -> None:
    """Raise for what is no tensor, or of a dtype or device that can't be quantized."""
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(x).__name__}; use torch.as_tensor")
    if x.dtype not in FLOATS:
        names = ", ".join(str(dtype) for dtype in FLOATS)
        raise ValueError(f"expected a tensor of {names}, got {x.dtype}")
    check_place(x.device, devices)


def check_place(device: torch.device, devices: tuple[str, ...]) -> None:
    """Raise for another type of device."""
    if device.type not in devices:
        names = "the CPU" if devices == ("cpu",) else "the CPU or a CUDA device"
        raise ValueError(f"expected a tensor on {names}, got {device}; move it with .to('cpu')")


def check_finite(magnitudes: Tensor, place: Rectangle, before: int) -> None:
    """Raise if the maximum of a block is infinite or NaN.

    Args:
        magnitudes: bits of block maxima.
        place: where they come from.
        before: rows before the matrix that `place` counts in.
    """
    limit = torch.finfo(torch.float64 if magnitudes.dtype == torch.int64 else torch.float32).max
    largest = torch.tensor(limit, dtype=_FLOAT_OF[magnitudes.dtype]).view(magnitudes.dtype)
    if int(magnitudes.max()) > int(largest):
        raise NonFiniteError(
            f"expected finite values, got an infinity or NaN in rows {before + place.top} to "
            f"{before + place.bottom - 1}, columns {place.left} to {place.right - 1}; leave out "
            f"require_finite to saturate infinities and mark blocks with NaN"
        )


def check_finite_codes(q: MXTensor) -> None:
    """Raise if a block held an infinity or NaN: no other maximum of 32 bits gives such codes."""
    wrong = (q.scale_codes >= scales.CODE_OF_INF).nonzero()
    if len(wrong):
        raise NonFiniteError(
            f"expected finite values, got an infinity or NaN in block {wrong[0].tolist()}; leave "
            f"out require_finite to saturate infinities and mark blocks with NaN"
        )


_FLOAT_OF = {integer: dtype for dtype, integer in scales.INTEGERS.items()}
