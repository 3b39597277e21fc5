"""Where products go: new tensors, or given ones that are overwritten or added to."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_output(
    out: Tensor | None,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype | None,
    accumulate: bool,
) -> torch.dtype:
    """The dtype of the result.

    Raises:
        ValueError: for an `out` of another shape, device or dtype, or no `out` to add to.
    """
    if out is None:
        if accumulate:
            raise ValueError("expected out to add to with accumulate=True, got none")
        dtype = torch.float32 if dtype is None else dtype
    else:
        if tuple(out.shape) != shape or out.device != device:
            raise ValueError(
                f"expected out of shape {list(shape)} on {device}, got {list(out.shape)} on "
                f"{out.device}"
            )
        if dtype not in (None, out.dtype):
            raise ValueError(f"expected out of {dtype}, got {out.dtype}; leave dtype out")
        dtype = out.dtype
    if dtype not in DTYPES or (dtype == torch.float64 and device.type != "cpu"):
        names = ", ".join(map(str, DTYPES[: 4 if device.type == "cpu" else 3]))
        raise ValueError(f"expected a result of {names} on {device}, got {dtype}")
    return dtype


def store(product: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """Put a product where it belongs, rounded once.

    Args:
        product: as wide as `out` or wider; overwritten where it is wider.
        out: the result; None returns the product itself.
        accumulate: add to what `out` holds.
    """
    if out is None:
        return product
    if not accumulate:
        return out.copy_(product)
    if out.dtype == product.dtype:
        return out.add_(product)
    return out.copy_(product.add_(out.to(product.dtype)))
