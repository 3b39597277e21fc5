"""Values of quantized tensors."""

import torch
from torch import Tensor

from sshsdp_mxfp import scales
from sshsdp_mxfp.chunks import chunks
from sshsdp_mxfp.quantize import FLOATS
from sshsdp_mxfp.tensor import MXTensor


def dequantize(t: MXTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of a quantized tensor.

    Every value is exact in float64, and in float32 unless it is 2^128 or more (infinity then; a
    scale code of 247 or more is needed for that). In bfloat16 values with scale codes from 3 to 246
    are exact, others are rounded to nearest even, as is everything in float16.

    Args:
        t: the quantized tensor, on the CPU.
        dtype: float32, float64, bfloat16 or float16.

    Returns:
        A new contiguous tensor of t's shape.

    Raises:
        ValueError: for another dtype or device.
    """
    if dtype not in FLOATS:
        names = ", ".join(str(known) for known in FLOATS)
        raise ValueError(f"expected one of {names}, got {dtype}")
    if t.data.device.type != "cpu":
        raise ValueError(f"expected a tensor on the CPU, got {t.data.device}")
    result = torch.empty(t.shape, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if result.numel():
        for values, data, codes in chunks(result, t.data, t.scale.view(torch.uint8), t.block):
            values.copy_(data.to(wide).mul_(scales.values(codes, wide)))
    return result
