"""Random tensors that show what blocks are for."""

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["normal", "rows", "outliers"]


def draw(kind: Kind, shape: tuple[int, ...], seed: int) -> Tensor:
    """A float32 tensor.

    Args:
        kind: "normal": independent, of unit variance. "rows": the same, every row times a power
            2^n of normal n with a standard deviation of 4, as where rows are of different scale.
            "outliers": the same as "normal", one in 1000 elements times 100.
        shape: of the tensor.
        seed: of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    match kind:
        case "normal":
            return x
        case "rows":
            return x * torch.exp2(4 * torch.randn((*shape[:-1], 1), generator=generator))
        case "outliers":
            return torch.where(torch.rand(shape, generator=generator) < 1e-3, 100 * x, x)
