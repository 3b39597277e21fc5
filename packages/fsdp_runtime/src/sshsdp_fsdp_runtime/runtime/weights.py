"""Full weights of runtime groups: gathered when they are read, dropped when they are not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from sshsdp_fsdp_runtime.plan import GroupPlan, WeightForm
from sshsdp_fsdp_runtime.runtime.labelled_program import LabelledProgram

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle


class WeightSlot:
    """A buffer that groups take turns with for their gathered weights."""

    def __init__(self) -> None:
        self.occupant: WeightGroup | None = None


class WeightGroup:
    """The full weights of one group.

    Attributes:
        plan: the group.
        ready: whether every weight of the group may be read now.
        active: how many forwards of the group's module are running.
        awaited: whether a backward of the group is on its way.
        refusal: why nobody may read them any more, or None.
    """

    refusal: RuntimeError | None = None

    def __init__(
        self, plan: GroupPlan, program: LabelledProgram | None, slot: WeightSlot, *, poison: bool
    ) -> None:
        self.plan = plan
        self.ready = False
        self.active = 0
        self.awaited = False
        self._program = program
        self._slot = slot
        self._poison = poison
        self._gathered: list[ParameterHandle] = []
        self._absent: list[torch.Tensor] = []
        self._versions: tuple[int, ...] = ()

    @property
    def releases(self) -> bool:
        """Whether weights are dropped after use, so that they must be gathered again."""
        return bool(self._gathered)

    def adopt(self, handles: Sequence["ParameterHandle"]) -> None:
        """Bind the parameters of the group to its buffers."""
        for handle in handles:
            if handle.buffers.atom.form is WeightForm.GATHERED:
                self._gathered.append(handle)
                self._absent.append(_absent(handle))
            else:
                _bind(handle, handle.weight)
        self._unbind()

    def unshard(self) -> None:
        """Make all weights of the group readable; never waits for more than their publication.

        Raises:
            RuntimeError: the group's buffer is in use by a running forward of another group.
        """
        if self.ready:
            return
        if self.refusal is not None:
            raise self.refusal
        if self._gathered:
            self._occupy()
            self._restore_versions()
        if self._program is not None:
            self._program.run("gather")
        for handle in self._gathered:
            _bind(handle, handle.weight)
        self.ready = True

    def refuse(self, error: RuntimeError) -> None:
        """From now on `unshard` raises `error`."""
        self.ready = False
        self.refusal = error

    def reshard(self) -> None:
        """Drop full weights that can be gathered again; no-op while a forward runs."""
        if not self.ready or self.active or not self._gathered:
            return
        self.ready = False
        self.awaited = False
        self._slot.occupant = None
        self._unbind()
        if self._poison:
            for handle in self._gathered:
                handle.buffers.weights.tensor.view(torch.uint8).fill_(0xFF)

    def shown(self, handle: "ParameterHandle") -> torch.Tensor:
        """What ``data`` of a parameter shows: a weight that others replace only in a forward."""
        if self.active or handle not in self._gathered:
            return handle.parameter
        return self._absent[self._gathered.index(handle)]

    def invalidate(self) -> None:
        """Weights are about to change or have changed: nothing gathered before may be read."""
        self.reshard()
        self.ready = False
        self._versions = ()

    def _occupy(self) -> None:
        other = self._slot.occupant
        if other is not None and other is not self:
            if other.active:
                raise RuntimeError(
                    f"expected groups that share buffer {self.plan.slot} to run one after another, "
                    f"got {self.plan.label!r} inside the forward of {other.plan.label!r}; raise "
                    "`slots` of fully_shard() or make one of them part of the other's group"
                )
            if other.awaited:
                other.disown()
            other.reshard()
        self._slot.occupant = self

    def disown(self) -> None:
        """Give up the buffer although a backward may still read saved weights from it.

        Until the weights are gathered again, autograd's own check of in-place changes turns such
        a read into an error.
        """
        parameters = tuple(handle.parameter for handle in self._gathered)
        self._versions = tuple(parameter._version for parameter in parameters)
        torch.autograd.graph.increment_version(parameters)

    def _restore_versions(self) -> None:
        if self._versions:
            set_versions([handle.parameter for handle in self._gathered], self._versions)
            self._versions = ()

    def _unbind(self) -> None:
        for handle, absent in zip(self._gathered, self._absent, strict=True):
            _bind(handle, absent)


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Set autograd's counters of in-place changes.

    torch keeps the function private; should it go, `disown` may leave the counters raised, at
    the price of an error where groups take turns within one backward.
    """
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def _bind(handle: "ParameterHandle", view: torch.Tensor) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        handle.parameter.data = view


def _absent(handle: "ParameterHandle") -> torch.Tensor:
    """What a parameter shows while its weight is elsewhere: its shape, filled with one NaN.

    Reading gives NaN and writing in place raises, since all elements share one address.
    """
    dtype = handle.buffers.atom.weight_dtype
    value = float("nan") if dtype.is_floating_point else 0
    return torch.full((), value, dtype=dtype).expand(handle.spec.shape)
