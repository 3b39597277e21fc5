"""From sums at ZeRO-2 to main gradients at ZeRO-1, for one atom."""

from collections.abc import Mapping, Sequence

from sshsdp_fsdp_runtime.runtime.buffers import AtomBuffers
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.labelled_program import LabelledProgram


class Finishing:
    """Sums an atom's gradients over the ranks that its microbatches were not summed over.

    With ZeRO-1 and ZeRO-2 cut differently, sums at ZeRO-2 are reduced into main gradients of their
    own, which can be made again when more backward follows. Then main gradients are summed over
    replicas, in place.

    Args:
        buffers: of the atom.
        handles: its parameters.
        reduce_sums: from ZeRO-2 to ZeRO-1; None where the levels agree.
        sum_replicas: over replicas; None where there are none.
        rank: this rank.
        undo: divides out again what averaging has divided by.
    """

    def __init__(
        self,
        buffers: AtomBuffers,
        handles: Sequence[ParameterHandle],
        reduce_sums: LabelledProgram | None,
        sum_replicas: LabelledProgram | None,
        *,
        rank: int,
        undo: float,
    ) -> None:
        self._buffers = buffers
        self._handles = tuple(handles)
        self._reduce_sums = reduce_sums
        self._sum_replicas = sum_replicas
        self._counts = rank < buffers.atom.degrees.zero1
        self._undo = undo

    def run(self, used: Mapping[str, bool]) -> None:
        """Finish the gradients, unless no rank has any. Collective."""
        if not any(used[handle.spec.name] for handle in self._handles):
            return
        if self._reduce_sums is not None or self._sum_replicas is not None:
            self._fill()
        if self._reduce_sums is not None:
            self._reduce_sums.run("reduce")
        if self._sum_replicas is not None:
            self._sum_replicas.run("reduce")

    def undo(self) -> None:
        """More gradients are coming: what was summed in place becomes one replica's part."""
        if self._sum_replicas is None or self._reduce_sums is not None:
            return
        assert self._buffers.main_grad is not None
        if self._counts:
            self._buffers.main_grad.tensor.mul_(self._undo)
        else:
            self._buffers.main_grad.tensor.zero_()

    def _fill(self) -> None:
        """Write zeros where gradients would have been written directly and were not."""
        if not self._buffers.atom.accumulates_in_place:
            return
        for handle in self._handles:
            if not handle.written:
                assert handle.gradient is not None
                handle.gradient.zero_()
                handle.written = True
