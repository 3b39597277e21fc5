"""Linear layers that are computed as one: the co-call rule, and how often it held."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from sshsdp_fsdp_runtime.plan import PackPlan, PlanError
from sshsdp_fsdp_runtime.runtime.packed_linear import Operand, PackCalls, PackedLinear

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle

Circumstances: TypeAlias = tuple[object, ...]


@dataclass(slots=True)
class _CoCall:
    """Outputs of all members for one x that were not handed out yet."""

    x: TensorWeakRef
    circumstances: Circumstances
    outputs: dict[int, torch.Tensor]


class Packed:
    """One pack of a model.

    The first member called with a tensor computes the outputs of all. The others return theirs if
    they are called with the same tensor, unchanged and in the same circumstances, each once.
    Whatever else is called is computed alone, from the member's own rows.

    Args:
        plan: the pack.
        weights: of the members, in order.
        biases: the same; empty where they have none.

    Attributes:
        plan: the pack.
        calls: how often the rule held.
    """

    def __init__(
        self,
        plan: PackPlan,
        weights: "Sequence[ParameterHandle]",
        biases: "Sequence[ParameterHandle]",
    ) -> None:
        self.plan = plan
        self.calls = PackCalls()
        self._weight = Operand.of(weights)
        self._bias = Operand.of(biases) if biases else None
        self._parameters = tuple(handle.parameter for handle in (*weights, *biases))
        self._biases = tuple(h.parameter for h in biases) if biases else (None,) * len(weights)
        self._open: _CoCall | None = None

    def output(self, index: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """What the member of this position gives for `x`; None where it is to be computed alone.

        Args:
            index: position of the member.
            x: an ordinary tensor in the dtype of the weights.
            bias: that the caller wants added.
        """
        alike = bias is self._biases[index] and x.dim() > 0 and x.shape[-1] == self.plan.columns
        # Changes of tensors of inference mode are not counted: x may be another one meanwhile.
        if not alike or x.is_inference():
            return None
        circumstances = self._circumstances(x)
        call = self._open
        if call is None or call.x() is not x or call.circumstances != circumstances:
            self._open = None  # frees what nobody asked for
            outputs = PackedLinear.apply(self._weight, self._bias, self.calls, x, *self._parameters)  # type: ignore[no-untyped-call]
            call = self._open = _CoCall(TensorWeakRef(x), circumstances, dict(enumerate(outputs)))
        return call.outputs.pop(index, None)

    def drop(self) -> None:
        """Forget outputs that were not asked for."""
        self._open = None

    def _circumstances(self, x: torch.Tensor) -> Circumstances:
        """What must not differ between the calls of members that share a product."""
        return (
            x._version,
            x.requires_grad,
            torch.is_grad_enabled(),
            _saving(),
            *((p._version, p.requires_grad) for p in self._parameters),
        )


def _saving() -> object:
    """What happens to tensors that autograd saves now: a checkpointed region has hooks of its own.

    An output that was computed outside of such a region must not be used inside, or recomputation
    would save other tensors than the forward did. torch keeps the question private; should it go,
    sharing products must end where a checkpointed region begins.
    """
    hooks: object = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks


def check_members(model: nn.Module, packs: Iterable[PackPlan]) -> None:
    """Refuse members that only look like linear layers.

    Raises:
        PlanError: a member is another module.
    """
    for pack in packs:
        for name in pack.members:
            module = model.get_submodule(name)
            if not isinstance(module, nn.Linear):
                raise PlanError(
                    f"pack of {pack.module!r}: expected nn.Linear members, got "
                    f"{type(module).__name__} for {name!r}; leave it out of the pack"
                )
