"""Quantization on GPUs: what is launched for which tensors."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import lcm
from typing import Any

import torch

from sshsdp_mxfp.kernels.jobs import QuantizeJob
from sshsdp_mxfp.kernels.launch import Launch, check_device, check_size, table
from sshsdp_mxfp.kernels.planes import Plane
from sshsdp_mxfp.kernels.variant import JobMatrix, Variant, tiles, warps
from sshsdp_mxfp.matrices import matrices


def prepare(jobs: Sequence[QuantizeJob], *, direct: bool = False) -> tuple[Launch, ...]:
    """What quantizes all jobs: one launch for all that need the same kernel.

    Kernels differ in the dtype of x, format, blocks and memory orders, whether rounding is
    stochastic, and whether all that matters is a multiple of 16.

    Args:
        jobs: checked ones.
        direct: don't make a table of jobs where one matrix is all there is.

    Raises:
        ValueError: for what kernels can't do.
        MissingTritonError: if Triton isn't installed.
    """
    if not jobs:
        return ()
    for job in jobs:
        job.check_kernel()
    device = check_device(*(job.x for job in jobs))
    hardware = converts(device)
    kinds = defaultdict[tuple[Any, ...], list[JobMatrix]](list)
    for matrix in (matrix for job in jobs for matrix in _matrices(job)):
        key = matrix.variant(hardware), matrix.job.x.dtype, matrix.aligned
        kinds[key].append(matrix)
    return tuple(
        _one(variant, found[0], device)
        if direct and len(found) == 1
        else _many(variant, found, device)
        for (variant, _, _), found in kinds.items()
    )


def converts(device: torch.device) -> bool:
    """Whether the device has instructions for E4M3 and E5M2 that give the same bits.

    They do on finite elements and infinities: cvt.rn.satfinite.e4m3x2.f32 and .e5m2x2.f32 of PTX
    round to nearest even, keep signs of zero and saturate at the largest finite value. Elements of
    blocks with NaN are overwritten. Other elements, and stochastic rounding, are computed.
    """
    if device.type == "cpu" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _one(variant: Variant, matrix: JobMatrix, device: torch.device) -> Launch:
    from sshsdp_mxfp.kernels.quantize_kernel import quantize_one  # needs Triton

    arguments = {**matrix.tensors(), **matrix.numbers()}
    programs, _ = tiles(matrix.x.matrix, variant.height, variant.width)
    count = warps(variant.height, variant.width, matrix.aligned)
    return Launch(quantize_one, programs, arguments, variant.constants, device, count)


def _many(variant: Variant, found: Sequence[JobMatrix], device: torch.device) -> Launch:
    from sshsdp_mxfp.kernels.quantize_kernel import COLUMNS, KINDS, quantize_many  # needs Triton

    rows, first = [], 0
    for matrix in found:
        count, across = tiles(matrix.x.matrix, variant.height, variant.width)
        addresses = {name: part.data_ptr() for name, part in matrix.tensors().items()}
        values = {"first": first, "across": across, **matrix.numbers(), **addresses}
        rows.append([values[name] for name in COLUMNS])
        first += count
    check_size(**{"number of tiles": first})
    kept = [tensor for matrix in found for tensor in matrix.tensors().values()]
    arguments = {"table": table(rows, device), "jobs": len(rows), "step": 0}
    constants = {**variant.constants, "kind": KINDS[found[0].x.matrix.dtype]}
    constants["aligned"] = found[0].aligned
    count = warps(variant.height, variant.width, found[0].aligned)
    return Launch(quantize_many, first, arguments, constants, device, count, tuple(kept))


def _matrices(job: QuantizeJob) -> Iterator[JobMatrix]:
    """The matrices of a job that have elements."""
    if not job.x.numel():
        return
    parts = [part for out in job.outs for part in (out.codes, out.scale_codes)]
    rows = lcm(*(out.format.rows for out in job.outs))
    for before, (x, *views) in matrices(rows, job.x.detach(), *parts):
        check_size(rows=x.shape[0], columns=x.shape[1])
        outs = tuple(
            (Plane.of(data), grid) for data, grid in zip(views[::2], views[1::2], strict=True)
        )
        yield JobMatrix(job, before, Plane.of(x), outs)
