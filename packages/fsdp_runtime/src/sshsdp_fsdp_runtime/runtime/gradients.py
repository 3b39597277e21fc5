"""Main gradients of a round: finished on demand, shown to users, scaled, dropped."""

from collections.abc import Sequence

import torch

from sshsdp_fsdp_runtime.runtime.finishing import Finishing
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.passes import Passes
from sshsdp_fsdp_runtime.runtime.sharded_gradient import ShardedGradient
from sshsdp_shardchain import Fragment, Level
from sshsdp_updates import labelled
from sshsdp_zerosm import Transport


class Gradients:
    """The main gradients of all parameters, between the first backward and zero_grad.

    Args:
        handles: trainable parameters.
        passes: the backward passes that feed them.
        transport: connects the ranks.
        finishing: what turns sums into main gradients, per atom.

    Attributes:
        version: raised whenever final gradients take other values; equal on all ranks.
    """

    def __init__(
        self,
        handles: Sequence[ParameterHandle],
        passes: Passes,
        transport: Transport,
        finishing: Sequence[Finishing],
    ) -> None:
        self._handles = tuple(handles)
        self._passes = passes
        self._transport = transport
        self._finishing = tuple(finishing)
        self._final = False
        self.version = 0
        self._used: dict[str, bool] = {}
        self._squares: dict[str, torch.Tensor] | None = None
        passes.changed = self._on_change
        passes.show_gradient = self._show
        passes.drop_gradient = self.drop

    def finalize(self) -> None:
        """Make main gradients final: all passes of all ranks summed. Collective, cheap again.

        More backward afterwards is legal; gradients are then finalized anew.
        """
        self._transport.check_process()
        if self._final:
            return
        with labelled("sshsdp::finalize gradients"):
            self._finalize()

    def _finalize(self) -> None:
        self._passes.drain()
        used = self._passes.agree_on_use(self._handles)
        self._used = {
            handle.spec.name: flag for handle, flag in zip(self._handles, used, strict=True)
        }
        for atom in self._finishing:
            atom.run(self._used)
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
        self._on_change()
        for piece in self._pieces(handle):
            piece.zero_()
        handle.used = False

    def fragment(self, handle: ParameterHandle) -> Fragment:
        """Which elements of a parameter this rank holds the main gradient of."""
        layout = handle.buffers.atom.layout
        return layout.fragment(handle.spec.name, Level.ZERO1, self._transport.rank)

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
        for piece in self._pieces(handle):
            piece.mul_(factor)
        self.version += 1
        self._squares = None

    def _show(self, handle: ParameterHandle) -> ShardedGradient | None:
        if self._passes.count == 0 or not (handle.used or handle.parameter.requires_grad):
            return None
        return ShardedGradient(self, handle)

    def _on_change(self) -> None:
        """Gradients are about to change: what was final becomes one replica's contribution."""
        self._squares = None
        if not self._final:
            return
        self._final = False
        if self._passes.count:
            for atom in self._finishing:
                atom.undo()

    def _pieces(self, handle: ParameterHandle) -> list[torch.Tensor]:
        """What a parameter's gradient is kept in: main gradient, and the sums it is made from.

        Sums at ZeRO-2 are kept, so that more backward can follow a finished gradient.
        """
        pieces = [self.local(handle)]
        if handle.buffers.atom.separate_main_grad:
            assert handle.buffers.accumulator is not None
            layout = handle.buffers.atom.layout
            held = layout.fragment(handle.spec.name, Level.ZERO2, self._transport.rank)
            start = held.local_offset
            pieces.append(handle.buffers.accumulator.tensor[start : start + held.numel])
        return pieces

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
