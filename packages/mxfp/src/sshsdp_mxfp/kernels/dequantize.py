"""Dequantization on GPUs: one launch per matrix; contiguous tensors are one."""

from collections.abc import Iterator

from torch import Tensor

from sshsdp_mxfp.elements import E4M3, E5M2
from sshsdp_mxfp.kernels.jobs import check_blocks, check_dtype
from sshsdp_mxfp.kernels.launch import Launch, check_device, check_size
from sshsdp_mxfp.kernels.planes import Plane
from sshsdp_mxfp.kernels.quantize import converts
from sshsdp_mxfp.kernels.variant import strides, tile_shape, tiles, warps
from sshsdp_mxfp.matrices import matrices
from sshsdp_mxfp.tensor import MXTensor


def prepare(t: MXTensor, out: Tensor) -> Iterator[Launch]:
    """What writes the values of t to `out`, of the same shape.

    Raises:
        ValueError: for another dtype, device, block or size.
        MissingTritonError: if Triton isn't installed.
    """
    device = check_device(out, t.codes, t.scale_codes)
    check_dtype(out)
    check_blocks(t.format, device)
    from sshsdp_mxfp.kernels.dequantize_kernel import dequantize_matrix  # needs Triton

    element, hardware = t.format.element, converts(device)
    height, width = tile_shape(t.format.block)
    constants = {
        "height": height,
        "width": width,
        "exponent_bits": element.exponent_bits,
        "mantissa_bits": element.mantissa_bits,
        "largest": element.largest_code,
        "per_byte": element.per_byte,
        "block_rows": t.format.rows,
        "block_columns": t.format.columns,
        "hardware": hardware and element in (E4M3, E5M2),
        "rounds": device.type == "cuda",
    }
    for _, (values, data, grid) in matrices(t.format.rows, out.detach(), t.codes, t.scale_codes):
        rows, columns = values.shape
        check_size(rows=rows, columns=columns)
        planes = Plane.of(values), Plane.of(data)
        arguments = {"out": values, "data": data, "scale": grid}
        sizes = {"rows": rows, "columns": columns, "stored": data.shape[1]}
        sizes |= strides("out", values) | strides("data", data) | strides("scale", grid)
        orders = {"out_order": planes[0].order, "order": planes[1].order}
        programs, _ = tiles(values, height, width)
        count = warps(height, width, all(plane.aligned for plane in planes))
        yield Launch(
            dequantize_matrix, programs, {**arguments, **sizes}, {**constants, **orders},
            device, count,
        )  # fmt: skip
