"""What an optimizer step needs of the runtime: final gradients, quiet weights, G, publication."""

from collections.abc import Sequence

import torch

from sshsdp_fsdp_runtime.plan import WeightForm
from sshsdp_fsdp_runtime.runtime import outside
from sshsdp_fsdp_runtime.runtime.buffers import AtomBuffers
from sshsdp_fsdp_runtime.runtime.gradients import Gradients
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.labelled_program import LabelledProgram
from sshsdp_fsdp_runtime.runtime.weights import WeightGroup
from sshsdp_updates import labelled
from sshsdp_zerosm import Transport


class WeightUpdate:
    """The time in which weights change: peers are quiet before, everything is fresh after.

    Args:
        transport: connects the ranks.
        atoms: whose weights change.
        gather_shards: completes this rank's shards of w from the parts that their owners wrote;
            None where every rank writes all that it keeps.
        groups: use the weights.
        handles: all parameters.

    Attributes:
        broken: an update began and did not end, so weights may be torn.
        lent: whether full values are with the user, who will give them back changed.
        averaged: whether an average is in the place of the weights, for a while.
    """

    def __init__(
        self,
        transport: Transport,
        atoms: Sequence[AtomBuffers],
        gather_shards: LabelledProgram | None,
        groups: Sequence[WeightGroup],
        handles: Sequence[ParameterHandle],
    ) -> None:
        self._transport = transport
        self._atoms = atoms
        self._gather_shards = gather_shards
        self._groups = groups
        self._parameters = [handle.parameter for handle in handles]
        # What others gather has no counter of changes worth asking: it is there for a while only.
        self._lasting = [h for h in handles if h.buffers.atom.form is not WeightForm.GATHERED]
        self._versions: list[int] = []
        self._peers_read = any(buffers.atom.degrees.zero1 > 1 for buffers in atoms)
        self.broken = False
        self.lent = self.averaged = False

    def check(self, doing: str) -> None:
        """Called before weights are used or updated, on every rank, before anything is sent.

        Raises:
            RuntimeError: they are torn, are being edited, or were changed in place where they lie.
        """
        if self.broken:
            raise RuntimeError(
                "expected complete weights, got an update that failed half-way; load a checkpoint"
            )
        self.check_not_lent(doing)
        with torch._C.DisableTorchFunctionSubclass():
            now = [handle.parameter._version for handle in self._lasting]
        if now != self._versions:
            pairs = zip(self._lasting, now, self._versions, strict=True)
            name = next(handle.spec.name for handle, new, old in pairs if new != old)
            raise RuntimeError(
                f"expected {name!r} as the last update left it, got it changed in place through "
                f"`data` or a view, on one rank or several; load weights before {doing}, and "
                f"{outside.CHANGE}"
            )

    def check_not_lent(self, doing: str) -> None:
        """Raise RuntimeError while full values are with the user."""
        if self.lent:
            raise RuntimeError(
                f"expected {doing} after the block of model.unsharded(), got it inside, where "
                "edits are not seen yet; leave the block first, or use unsharded(write=False)"
            )

    def check_own_weights(self, doing: str) -> None:
        """Raise RuntimeError while an average is in the place of the weights."""
        if self.averaged:
            raise RuntimeError(
                f"expected {doing} after the block of applied(), got it inside, where the average "
                "is in the place of the weights; leave the block first"
            )

    def begin(self) -> None:
        """Wait until no rank reads weights. Collective."""
        self.check_not_lent("a change of weights")
        self.check_own_weights("a change of weights")
        if self._peers_read:
            with labelled("sshsdp::idle"):
                self._transport.idle()
        self.broken = True

    def end(self) -> None:
        """Run G, complete shards, publish; groups gather before their next use. Collective."""
        with torch.no_grad(), labelled("sshsdp::G"):
            for buffers in self._atoms:
                if buffers.main_weight is not None:
                    buffers.own.tensor.copy_(buffers.main_weight.tensor)
        if self._peers_read:
            self._transport.publish()
        if self._gather_shards is not None:
            self._gather_shards.run("gather")
            self._transport.publish()
        for group in self._groups:
            group.invalidate()
        torch.autograd.graph.increment_version(self._parameters)
        with torch._C.DisableTorchFunctionSubclass():
            self._versions = [handle.parameter._version for handle in self._lasting]
        self.broken = False


class Steps:
    """The step protocol of sshsdp_updates over a sharded model."""

    def __init__(self, gradients: Gradients, update: WeightUpdate) -> None:
        self._gradients = gradients
        self._update = update
        self._seen = gradients.version

    def finalize_gradients(self) -> bool:
        """Make main gradients final; whether they differ from those of the previous call."""
        self._gradients.finalize()
        changed = self._gradients.version != self._seen
        self._seen = self._gradients.version
        return changed

    def used(self, name: str) -> bool:
        """Whether any rank has a gradient for the parameter."""
        return self._gradients.used(name)

    def begin_update(self) -> None:
        """Wait until no rank reads weights."""
        self._update.check("a step")
        self._update.begin()

    def end_update(self) -> None:
        """Run G and publish."""
        self._update.end()

    def zero_grad(self) -> None:
        """Drop the gradients of the round."""
        self._gradients.drop_all()
