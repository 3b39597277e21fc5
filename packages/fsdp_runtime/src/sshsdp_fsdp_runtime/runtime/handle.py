"""What the runtime knows of one parameter."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.autograd.graph import Node

from sshsdp_fsdp_runtime.plan import ParameterSpec

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.buffers import AtomBuffers
    from sshsdp_fsdp_runtime.runtime.gradient_group import GradientGroup
    from sshsdp_fsdp_runtime.runtime.packed import Packed
    from sshsdp_fsdp_runtime.runtime.passes import Passes
    from sshsdp_fsdp_runtime.runtime.weights import WeightGroup


@dataclass(slots=True, eq=False, weakref_slot=True)
class ParameterHandle:
    """Connects a model's parameter with the buffers that hold it.

    Attributes:
        spec: the parameter in the plan.
        index: its position in the plan.
        parameter: the model's object.
        buffers: buffers of its atom.
        weights: the group that makes its full weight readable.
        gradients: the group that reduces its gradient; None while it has none (frozen).
        passes: who decides where a gradient of the running backward pass is written.
        weight: view of its full weight in the group's buffer, valid while the group is ready.
        gradient: view of its whole g'.
        written: whether its region of g' was written in the buffer's present lifetime.
        used: whether it got a gradient on this rank since gradients were last dropped.
        pack: what computes it together with others, if it is the weight of a packed layer.
        pack_index: its position there.
    """

    spec: ParameterSpec
    index: int
    parameter: nn.Parameter
    buffers: "AtomBuffers"
    weights: "WeightGroup"
    gradients: "GradientGroup | None" = None
    passes: "Passes | None" = None
    weight: torch.Tensor = field(init=False)
    gradient: torch.Tensor | None = None
    written: bool = False
    used: bool = False
    pack: "Packed | None" = None
    pack_index: int = 0

    def __post_init__(self) -> None:
        self.weight = self.buffers.weights.member(self.spec.name).tensor

    @property
    def accumulate_node(self) -> Node:
        """Autograd's node that would accumulate into ``parameter.grad``.

        Not kept: the node holds the parameter where the garbage collector can't see it.
        """
        return torch.autograd.graph.get_gradient_edge(self.parameter).node
