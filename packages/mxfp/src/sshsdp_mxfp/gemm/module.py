"""A linear layer as a module."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sshsdp_mxfp.formats import MXFP8, Format
from sshsdp_mxfp.fp8_block128 import FP8Block128
from sshsdp_mxfp.gemm.choice import Backend
from sshsdp_mxfp.gemm.linear import mx_linear
from sshsdp_mxfp.gemm.weight import AnyWeight, quantize_weight


class MXLinear(nn.Linear):
    """`torch.nn.Linear` that multiplies by `mx_linear`; the same parameters and state.

    Every forward quantizes the weight, unless it is inside of `reuse_weights`.

    Args:
        in_features: a multiple of 32 (FP8Block128: 128), likewise `out_features`.
        out_features: see above.
        bias: whether there is one.
        fmt: as of `mx_linear`; likewise `grad_fmt` and `backend`.
        grad_fmt: see above.
        backend: see above.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: for sizes that are no multiples.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        fmt: Format | FP8Block128 = MXFP8(),  # noqa: B008 - frozen
        grad_fmt: Format | None = None,
        backend: Backend | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        step = fmt.block[1]
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if size % step:
                raise ValueError(
                    f"expected {name} to be a multiple of {step} for {fmt}, got {size}; pad it to "
                    f"{-(-size // step) * step}"
                )
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.fmt, self.grad_fmt, self.backend = fmt, grad_fmt, backend
        self._held: AnyWeight | None = None
        self._held_version: int | None = None
        self._reuses = 0

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        fmt: Format | FP8Block128 = MXFP8(),  # noqa: B008 - frozen
        grad_fmt: Format | None = None,
        backend: Backend | None = None,
    ) -> "MXLinear":
        """A layer that shares the parameters of another."""
        result = cls(
            linear.in_features, linear.out_features, linear.bias is not None,
            fmt=fmt, grad_fmt=grad_fmt, backend=backend, device="meta",
        )  # fmt: skip
        result.weight, result.bias = linear.weight, linear.bias
        return result

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in nn.Linear
        """[..., in_features] to [..., out_features]."""
        return mx_linear(
            input, self.weight, self.bias, fmt=self.fmt, grad_fmt=self.grad_fmt,
            quantized=self._weight() if self._reuses else None, backend=self.backend,
        )  # fmt: skip

    def _weight(self) -> AnyWeight:
        version = None if self.weight.is_inference() else self.weight._version
        if self._held is None:
            self._held = quantize_weight(self.weight, self.fmt)
            self._held_version = version
        elif self._held_version != version:
            raise RuntimeError(
                "expected a weight that stays as it is inside of reuse_weights, got one that was "
                "written to; leave the block before the optimizer steps"
            )
        return self._held

    @contextmanager
    def reuse_weight(self) -> Iterator[None]:
        """See `reuse_weights`."""
        self._reuses += 1
        try:
            yield
        finally:
            self._reuses -= 1
            if not self._reuses:
                self._held = self._held_version = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files don't take a quantized weight along."""
        return self.__dict__ | {"_held": None, "_held_version": None, "_reuses": 0}

    def extra_repr(self) -> str:
        """The usual, and the format."""
        chosen = f", backend={self.backend!r}" if self.backend else ""
        return f"{super().extra_repr()}, fmt={self.fmt}{chosen}"


@contextmanager
def reuse_weights(module: nn.Module) -> Iterator[None]:
    """Quantize each weight once for all forwards inside of the block: the microbatches of a step.

    Optimizers step outside of it. Layers can't tell whether a weight was changed: fused optimizers
    and writes to ``.data`` leave no trace that could be checked.

    Args:
        module: all its MXLinear layers.

    Raises:
        RuntimeError: from a forward, where it is seen that a weight was written to.
    """
    with ExitStack() as stack:
        for part in module.modules():
            if isinstance(part, MXLinear):
                stack.enter_context(part.reuse_weight())
        yield
