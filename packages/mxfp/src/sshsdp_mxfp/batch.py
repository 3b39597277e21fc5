"""Many tensors at once: prepared, and then run any number of times.

On CUDA devices a batch is one launch for all that need the same kernel, whatever their shapes. On
CPUs it is a loop.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sshsdp_mxfp.formats import Format
from sshsdp_mxfp.kernels import Launch, QuantizeJob
from sshsdp_mxfp.kernels import quantize as kernels
from sshsdp_mxfp.kernels.launch import check_device
from sshsdp_mxfp.kernels.relayout import prepare_spans, prepare_writes
from sshsdp_mxfp.layouts import ScaleSpan, ScaleWrite
from sshsdp_mxfp.layouts.write import CheckedWrite
from sshsdp_mxfp.quantize import CPU_OR_CUDA, check_input, quantize
from sshsdp_mxfp.rounding import Stochastic
from sshsdp_mxfp.tensor import MXTensor


class QuantizeBatch:
    """Quantizes many tensors, each from one read, into one or two results.

    Addresses are taken when it is made; `run` reads what is there then. May be run inside of a
    captured CUDA graph, but not made there.

    Args:
        jobs: tensors and where they go, all on one device.

    Raises:
        ValueError: for tensors that don't belong together, on several devices, or of a dtype, block
            or size that the device can't do.
        MissingTritonError: for CUDA tensors where Triton isn't installed.
    """

    def __init__(self, jobs: Sequence[QuantizeJob]) -> None:
        for job in jobs:
            check_input(job.x, CPU_OR_CUDA)
            job.check()
        self._jobs = tuple(jobs)
        on_gpu = any(job.x.is_cuda for job in jobs)
        self._launches = kernels.prepare(self._jobs) if on_gpu else None

    @property
    def launches(self) -> int:
        """Kernels that one run launches; 0 on CPUs."""
        return len(self._launches or ())

    def run(self, step: int = 0) -> None:
        """Quantize all tensors.

        Args:
            step: added to the ordinals of stochastic roundings, modulo 2^32.
        """
        if self._launches is not None:
            for launch in self._launches:
                launch.run(step=step % (1 << 32))
            return
        for job in self._jobs:
            rounding = job.rounding
            if rounding is not None:
                rounding = replace(rounding, ordinal=(rounding.ordinal + step) % (1 << 32))
            for out in job.outs:
                quantize(job.x, out.format, rounding=rounding, out=out)


class ScaleBatch:
    """Lays many scales out for kernels.

    Addresses are taken when it is made; `run` reads what is there then. May be run inside of a
    captured CUDA graph, but not made there. What is written must not overlap.

    Args:
        items: rectangles of operands, or spans of their storage, all on one device.

    Raises:
        ValueError: as write_scales and pack_span do, or for tensors on several devices.
        MissingTritonError: for CUDA tensors where Triton isn't installed.
    """

    def __init__(self, items: Sequence[ScaleWrite | ScaleSpan]) -> None:
        self._writes = [CheckedWrite(item) for item in items if isinstance(item, ScaleWrite)]
        spans = (item for item in items if isinstance(item, ScaleSpan))
        self._parts = [part for span in spans for part in span.parts()]
        targets = [write.cells for write in self._writes]
        targets += [part.target for part in self._parts]
        self._launches: tuple[Launch, ...] | None = None
        if any(target.is_cuda for target in targets):
            check_device(*targets)
            self._launches = prepare_writes(self._writes) + prepare_spans(self._parts)

    @property
    def launches(self) -> int:
        """Kernels that one run launches; 0 on CPUs."""
        return len(self._launches or ())

    def run(self) -> None:
        """Write all scales."""
        if self._launches is not None:
            for launch in self._launches:
                launch.run()
            return
        for write in self._writes:
            write.write()
        for part in self._parts:
            part.fill()


def quantize_both(
    x: Tensor, fmt: Format, *, transposed: bool = False, rounding: Stochastic | None = None
) -> tuple[MXTensor, MXTensor]:
    """Quantize a tensor twice, for the two dimensions that GEMMs contract; read once on GPUs.

    Args:
        x: as of `quantize`, at least two dimensions.
        fmt: of the first result; blocks of the second are turned, 1x32 into 32x1. Blocks of 32x32
            give the same bytes twice.
        transposed: give the second one a transposed memory order, such that ``second.mT`` is
            contiguous: the operand of kernels that want the contracted dimension adjacent.
        rounding: as of `quantize`; the same numbers for both.

    Returns:
        Two new tensors of x's shape.

    Raises:
        ValueError: as of `quantize`, or for a transposed order of elements that share bytes.
    """
    check_input(x, CPU_OR_CUDA)
    if x.dim() < 2:
        raise ValueError(f"expected at least 2 dimensions, got shape {list(x.shape)}")
    first = MXTensor.empty(x.shape, fmt, device=x.device)
    if transposed:
        second = MXTensor.empty(x.mT.shape, fmt, device=x.device).mT
    else:
        turned = replace(fmt, block=(fmt.columns, fmt.rows))
        second = MXTensor.empty(x.shape, turned, device=x.device)
    job = QuantizeJob(x, first, second, rounding)
    if x.is_cuda:
        for launch in kernels.prepare([job], direct=True):
            launch.run()
    else:
        QuantizeBatch([job]).run()
    return first, second
