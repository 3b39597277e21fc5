"""What ``p.grad`` shows: a gradient of logical shape whose values are spread over the ranks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch

from sshsdp_shardchain import Fragment

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.gradients import Gradients
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle

_aten = torch.ops.aten


class ShardedGradient(torch.Tensor):
    """Supports its 2-norm and scaling in place, which is what clipping needs.

    Both finalize gradients and are therefore collective: call them on every rank. Any other
    operation raises; `local` is this rank's piece.
    """

    _gradients: "Gradients"
    _handle: "ParameterHandle"

    @staticmethod
    def __new__(cls: "type[Self]", gradients: "Gradients", handle: "ParameterHandle") -> Self:  # noqa: D102
        dtype = handle.buffers.atom.main_dtype
        tensor: Self = torch.Tensor._make_wrapper_subclass(cls, handle.spec.shape, dtype=dtype)
        tensor._gradients = gradients
        tensor._handle = handle
        return tensor

    @property
    def fragment(self) -> Fragment:
        """Which elements of the parameter `local` holds."""
        return self._gradients.fragment(self._handle)

    @property
    def local(self) -> torch.Tensor:
        """This rank's 1-D piece of the finalized gradient. Collective: finalizes.

        Zeros where no rank has a gradient of the parameter, which the optimizer then skips.
        """
        self._gradients.finalize()
        piece = self._gradients.local(self._handle)
        if not self._gradients.used(self._handle.spec.name):
            piece.zero_()  # nothing has written to it, in this round or ever
        return piece

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shape = tuple(self.shape)
        return f"ShardedGradient({self._handle.spec.name!r}, shape={shape}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Norms and scaling; everything else is refused."""
        handler = _HANDLERS.get(function)
        if handler is None:
            raise RuntimeError(
                f"expected a norm or mul_ of a sharded gradient, got {function}; update weights "
                "with model.optimizer, clip with its clip_grad_norm_(), and read this rank's "
                "piece from p.grad.local"
            )
        return handler(*args, **(kwargs or {}))


def _norm(gradient: ShardedGradient, order: float = 2, *_: Any, **__: Any) -> torch.Tensor:
    if order != 2:
        raise RuntimeError(
            f"expected the 2-norm of a sharded gradient, got order {order}; use norm_type=2"
        )
    return gradient._gradients.norm(gradient._handle)


def _norms(gradients: list[torch.Tensor], order: float = 2, **_: Any) -> list[torch.Tensor]:
    return [
        _norm(g, order) if isinstance(g, ShardedGradient) else torch.linalg.vector_norm(g, order)
        for g in gradients
    ]


def _mul(gradient: ShardedGradient, factor: Any) -> ShardedGradient:
    gradient._gradients.scale(gradient._handle, float(factor))
    return gradient


def _muls(gradients: list[torch.Tensor], factor: Any) -> None:
    for gradient in gradients:
        gradient.mul_(factor)


def _detach(gradient: ShardedGradient) -> ShardedGradient:
    return ShardedGradient(gradient._gradients, gradient._handle)


def _unscale(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "expected gradients that are not scaled, got a GradScaler; train in bfloat16 or float32, "
        "or build it with GradScaler(enabled=False)"
    )


_HANDLERS: dict[Any, Callable[..., Any]] = {
    _aten.linalg_vector_norm.default: _norm,
    _aten._foreach_norm.Scalar: _norms,
    _aten.mul_.Tensor: _mul,
    _aten.mul_.Scalar: _mul,
    _aten._foreach_mul_.Tensor: _muls,
    _aten._foreach_mul_.Scalar: _muls,
    _aten.detach.default: _detach,
    _aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
}
