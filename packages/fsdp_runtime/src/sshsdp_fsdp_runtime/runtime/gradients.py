"""Main gradients of a round: finished on demand, shown to users, scaled, dropped."""

from collections.abc import Mapping, Sequence

import torch

from sshsdp_fsdp_runtime.runtime.buffers import AtomBuffers
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.passes import Passes
from sshsdp_fsdp_runtime.runtime.sharded_gradient import ShardedGradient
from sshsdp_shardchain import Fragment, Level
from sshsdp_zerosm import Program, Transport


class Gradients:
    """The main gradients of all parameters, between the first backward and zero_grad.

    Args:
        handles: trainable parameters.
        passes: the backward passes that feed them.
        transport: connects the ranks.
        replica_sums: per atom with replicas, the program that sums main gradients over them.
        mean: whether sums over ranks are divided by the number of ranks.

    Attributes:
        version: raised whenever final gradients take other values; equal on all ranks.
    """

    def __init__(
        self,
        handles: Sequence[ParameterHandle],
        passes: Passes,
        transport: Transport,
        replica_sums: Mapping[str, Program],
        *,
        mean: bool,
    ) -> None:
        self._handles = tuple(handles)
        self._passes = passes
        self._transport = transport
        self._replica_sums = replica_sums
        self._mean = mean
        self._final = False
        self.version = 0
        self._used: dict[str, bool] = {}
        self._squares: dict[str, torch.Tensor] | None = None
        passes.changed = self._on_change
        passes.show_gradient = self._show
        passes.drop_gradient = self.drop

    def finalize(self) -> None:
        """Make main gradients final: every pass reduced, replicas summed. Collective, cheap again.

        More backward afterwards is legal; gradients are then finalized anew.
        """
        if self._final:
            return
        self._passes.drain()
        used = self._passes.agree_on_use(self._handles)
        self._used = {
            handle.spec.name: flag for handle, flag in zip(self._handles, used, strict=True)
        }
        for buffers in self._replicated():
            self._sum_replicas(buffers)
        self._final = True
        self.version += 1

    def used(self, name: str) -> bool:
        """Whether any rank has a gradient for the parameter in this round (after finalize)."""
        return self._used[name]

    def drop_all(self) -> None:
        """Begin a new round: the next gradients overwrite."""
        self._passes.begin_round()

    def drop(self, handle: ParameterHandle) -> None:
        """Drop the gradient of one parameter."""
        if self._passes.count == 0:
            return
        self._passes.drain()
        fragment = self.fragment(handle)
        self.local(handle)[: fragment.numel].zero_()
        handle.used = False
        self._on_change()

    def fragment(self, handle: ParameterHandle) -> Fragment:
        """Which elements of a parameter this rank holds the main gradient of."""
        layout = handle.buffers.atom.layout
        return layout.fragment(handle.spec.name, Level.ZERO2, self._transport.rank)

    def local(self, handle: ParameterHandle) -> torch.Tensor:
        """This rank's 1-D piece of the main gradient."""
        fragment = self.fragment(handle)
        assert handle.buffers.main_grad is not None
        start = fragment.local_offset
        return handle.buffers.main_grad.tensor[start : start + fragment.numel]

    def norm(self, handle: ParameterHandle) -> torch.Tensor:
        """2-norm of the whole gradient of a parameter; one exchange serves all parameters."""
        self.finalize()
        if self._squares is None:
            self._squares = self._all_squares()
        square = self._squares[handle.spec.name]
        return square.sqrt().to(self.local(handle).dtype)

    def scale(self, handle: ParameterHandle, factor: float) -> None:
        """Multiply the gradient of a parameter in place."""
        self.finalize()
        self.local(handle).mul_(factor)
        self.version += 1
        self._squares = None

    def _show(self, handle: ParameterHandle) -> ShardedGradient | None:
        return None if self._passes.count == 0 else ShardedGradient(self, handle)

    def _on_change(self) -> None:
        """Gradients are about to change: what was final becomes one replica's contribution."""
        self._squares = None
        if not self._final:
            return
        self._final = False
        for buffers in self._replicated() if self._passes.count else ():
            assert buffers.main_grad is not None
            if self._transport.rank >= buffers.atom.degrees.zero1:
                buffers.main_grad.tensor.zero_()
            elif self._mean:
                buffers.main_grad.tensor.mul_(self._transport.world)

    def _replicated(self) -> list[AtomBuffers]:
        atoms = {id(h.buffers): h.buffers for h in self._handles}
        return [b for b in atoms.values() if b.atom.replicas > 1]

    def _sum_replicas(self, buffers: AtomBuffers) -> None:
        members = [handle for handle in self._handles if handle.buffers is buffers]
        if not any(self._used[handle.spec.name] for handle in members):
            return
        for handle in members:
            if buffers.atom.accumulates_in_place and not handle.written:
                self.local(handle).zero_()
                handle.written = True
        self._replica_sums[buffers.atom.name].run("reduce")

    def _all_squares(self) -> dict[str, torch.Tensor]:
        squares = torch.zeros(len(self._handles), dtype=torch.float64)
        for index, handle in enumerate(self._handles):
            counted = self._transport.rank < handle.buffers.atom.degrees.zero1
            if counted and self._used[handle.spec.name]:
                squares[index] = torch.linalg.vector_norm(self.local(handle)).double().square()
        messages = self._transport.exchange(squares.numpy().tobytes())
        total = torch.zeros_like(squares)
        for message in messages:
            total += torch.frombuffer(bytearray(message), dtype=torch.float64)
        return {h.spec.name: total[index] for index, h in enumerate(self._handles)}
