"""What torch's block-scaled GEMMs ask of swizzled scales, asked without a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from sshsdp_mxfp.layouts import SwizzledLayout


def multiply(m, n, k, blocks):
    with FakeTensorMode():
        a, b = (torch.empty(rows, k, dtype=torch.float8_e4m3fn, device="cuda") for rows in (m, n))
        scales = [SwizzledLayout(rows, blocks).allocate("cuda") for rows in (m, n)]
        return functional.scaled_mm(
            a,
            b.t(),
            scales[0],
            functional.ScalingType.BlockWise1x32,
            scales[1],
            functional.ScalingType.BlockWise1x32,
            swizzle_a=functional.SwizzleType.SWIZZLE_32_4_4,
            swizzle_b=functional.SwizzleType.SWIZZLE_32_4_4,
            output_dtype=torch.bfloat16,
        )


@pytest.mark.parametrize(
    ("m", "n", "k"), [(128, 128, 128), (70, 48, 96), (1, 16, 32), (300, 16, 2880)]
)
def test_scaled_mm_takes_the_operands(m, n, k):
    assert multiply(m, n, k, k // 32).shape == (m, n)


def test_scaled_mm_refuses_operands_of_another_k():
    with pytest.raises(RuntimeError, match="scale"):
        multiply(128, 128, 256, 4)
