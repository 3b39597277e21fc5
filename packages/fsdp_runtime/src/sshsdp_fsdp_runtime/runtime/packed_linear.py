"""Several linear layers in one product: their weights are one operand, their gradients another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from sshsdp_fsdp_runtime.runtime.direct import (
    Gradients,
    differentiable_product,
    memory_of,
    write_product,
    write_sum,
)
from sshsdp_fsdp_runtime.runtime.engine import returns_gradients, wants_gradient

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """Parameters that lie tight in their list, seen as one.

    Attributes:
        handles: the parameters, in order.
        value: view of w, valid while the group is ready: [rows of all, columns], or [rows of all].
        gradient: view of g'; None where the parameters are frozen.
    """

    handles: "tuple[ParameterHandle, ...]"
    value: torch.Tensor
    gradient: torch.Tensor | None

    @classmethod
    def of(cls, handles: "Sequence[ParameterHandle]") -> "Operand":
        """The operand of parameters that the plan has placed one after another."""
        first = handles[0]
        start = first.buffers.atom.layout.placement(first.spec.name).offset
        numel = sum(handle.spec.numel for handle in handles)
        shape = (-1, *first.spec.shape[1:])

        def whole(of_list: torch.Tensor) -> torch.Tensor:
            return of_list[start : start + numel].view(shape)

        gradients = first.buffers.gradients
        return cls(
            tuple(handles),
            whole(first.buffers.weights.tensor),
            None if gradients is None else whole(gradients.tensor),
        )


@dataclass(slots=True)
class PackCalls:
    """How often a pack was computed as one, and how often a member alone.

    Attributes:
        fused_forward: products that gave the outputs of all members.
        sliced_forward: outputs of a member that were computed alone.
        fused_backward: backwards with one product for the input and one for the weights.
        sliced_backward: backwards of a member that were computed alone.
    """

    fused_forward: int = 0
    sliced_forward: int = 0
    fused_backward: int = 0
    sliced_backward: int = 0


class PackedLinear(torch.autograd.Function):
    """``y_i = x W_i^T + b_i`` for all members, in one product each way where that is possible."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Operand,
        bias: Operand | None,
        calls: PackCalls,
        x: torch.Tensor,
        *_parameters: torch.Tensor,  # weights, then biases: autograd has to know of them
    ) -> tuple[torch.Tensor, ...]:
        """Compute all y; only x is saved."""
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        ctx.weight, ctx.bias, ctx.calls = weight, bias, calls
        calls.fused_forward += 1
        y = functional.linear(x, weight.value, None if bias is None else bias.value)
        return tuple(_columns(y, [handle.spec.shape[0] for handle in weight.handles]))

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor | None) -> Gradients:
        """Dx is returned; dW and db go to g', see `returns_gradients`."""
        (x,) = ctx.saved_tensors
        weight, bias = ctx.weight, ctx.bias
        group = weight.handles[0].weights
        wanted = ctx.needs_input_grad[3:]  # of x and the parameters
        of_biases = 1 + len(weight.handles)
        with torch._C.DisableTorchFunctionSubclass():
            if not group.ready:
                group.unshard()
            if returns_gradients((*weight.handles, *(bias.handles if bias is not None else ()))):
                dx, *others = _differentiable(x, dy, weight, bias)
                return None, None, None, dx if wanted[0] else None, *others
            pieces = _Pieces.of(dy)
            dx = _dx(pieces, weight, x) if wanted[0] else None
            targets = _claim(weight, pieces, wanted[1:of_biases])
            fused = _write_weights(weight, targets, pieces, x)
            if bias is not None:
                _write_biases(bias, _claim(bias, pieces, wanted[of_biases:]), pieces)
            if fused:
                ctx.calls.fused_backward += 1
            else:
                ctx.calls.sliced_backward += len(pieces.apart)
        return (None, None, None, dx, *(None for _ in wanted[1:]))


def _columns(y: torch.Tensor, rows: Sequence[int]) -> Iterator[torch.Tensor]:
    """The outputs of members, which share the memory of y and don't overlap."""
    first = 0
    for count in rows:
        yield memory_of(y, first, (*y.shape[:-1], count))
        first += count


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Gradients of the outputs as matrices.

    Attributes:
        apart: of each member that has one, by its position.
        whole: of all members, if they are columns of one buffer, side by side.
    """

    apart: dict[int, torch.Tensor]
    whole: torch.Tensor | None

    @classmethod
    def of(cls, dy: Sequence[torch.Tensor | None]) -> "_Pieces":
        apart = {i: _matrix(piece) for i, piece in enumerate(dy) if piece is not None}
        given = [piece for piece in dy if piece is not None]
        whole = side_by_side(given) if len(given) == len(dy) else None
        return cls(apart, None if whole is None else _matrix(whole))


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def side_by_side(pieces: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One view of tensors that are adjacent columns of one buffer; None if they are not."""
    first = pieces[0]
    memory, stride = first.untyped_storage().data_ptr(), first.stride()
    start = first.storage_offset()
    for piece in pieces:
        if (
            type(piece) is not torch.Tensor
            or piece.untyped_storage().data_ptr() != memory
            or piece.stride() != stride
            or piece.shape[:-1] != first.shape[:-1]
            or piece.storage_offset() != start
        ):
            return None
        start += piece.shape[-1] * stride[-1]
    columns = sum(piece.shape[-1] for piece in pieces)
    return first.as_strided((*first.shape[:-1], columns), stride, first.storage_offset())


def _dx(pieces: _Pieces, weight: Operand, x: torch.Tensor) -> torch.Tensor | None:
    if pieces.whole is not None:
        return torch.mm(pieces.whole, weight.value).view(x.shape)
    dx = None
    for index, piece in pieces.apart.items():
        own = weight.handles[index].weight
        dx = torch.mm(piece, own) if dx is None else dx.addmm_(piece, own)
    return None if dx is None else dx.view(x.shape)


_Targets = dict[int, tuple[torch.Tensor, bool]]  # where to write and whether to overwrite


def _claim(operand: Operand, pieces: _Pieces, wanted: Sequence[bool]) -> _Targets:
    """Targets of the members that have a gradient and of which the engine wants it."""
    targets = {}
    for index in pieces.apart:
        handle = operand.handles[index]
        if wanted[index] and wants_gradient(handle):
            assert handle.passes is not None
            targets[index] = handle.passes.claim(handle)
    return targets


def _as_one(operand: Operand, targets: _Targets) -> bool | None:
    """Whether to overwrite all of g' or to add to it; None where members differ."""
    firsts = {first for _, first in targets.values()}
    in_place = all(target is operand.handles[i].gradient for i, (target, _) in targets.items())
    one = len(targets) == len(operand.handles) and in_place and len(firsts) == 1
    return firsts.pop() if one else None


def _write_weights(operand: Operand, targets: _Targets, pieces: _Pieces, x: torch.Tensor) -> bool:
    """Write dW; whether that was one product, or none was needed and dx was one."""
    if pieces.whole is not None:
        if not targets:
            return True
        first = _as_one(operand, targets)
        if first is not None:
            assert operand.gradient is not None
            write_product(operand.gradient, first, pieces.whole, _matrix(x))
            return True
    for index, (target, first) in targets.items():
        write_product(target, first, pieces.apart[index], _matrix(x))
    return False


def _write_biases(operand: Operand, targets: _Targets, pieces: _Pieces) -> None:
    first = None if pieces.whole is None else _as_one(operand, targets)
    if first is not None:
        assert operand.gradient is not None
        assert pieces.whole is not None
        write_sum(operand.gradient, first, pieces.whole)
        return
    for index, (target, overwrite) in targets.items():
        write_sum(target, overwrite, pieces.apart[index])


def _differentiable(
    x: torch.Tensor, dy: Sequence[torch.Tensor | None], weight: Operand, bias: Operand | None
) -> Gradients:
    """All gradients, as results of operations that autograd records."""
    pieces = [None if piece is None else _matrix(piece) for piece in dy]
    given = [
        (piece, h) for piece, h in zip(pieces, weight.handles, strict=True) if piece is not None
    ]
    dx = sum(differentiable_product(piece, handle) for piece, handle in given)
    dw = [None if piece is None else torch.mm(piece.t(), _matrix(x)) for piece in pieces]
    db = [None if piece is None else piece.sum(0) for piece in pieces] if bias else []
    return (dx.view(x.shape) if isinstance(dx, torch.Tensor) else None, *dw, *db)
