"""Products of quantized matrices, and linear layers made of them.

`mx_matmul` and its relatives multiply; `mx_linear`, `mx_grouped_linear` and `MXLinear` have
gradients. Who multiplies is `choose_gemm`'s choice, or the caller's.
"""

from sshsdp_mxfp.gemm.block128 import fp8_matmul
from sshsdp_mxfp.gemm.choice import (
    Backend,
    BackendError,
    GemmCapabilities,
    GemmChoice,
    GemmProblem,
)
from sshsdp_mxfp.gemm.choice import choose as choose_gemm
from sshsdp_mxfp.gemm.choice import probe as probe_gemm
from sshsdp_mxfp.gemm.function import WeightGrad
from sshsdp_mxfp.gemm.grouped import (
    mx_grouped_matmul,
    mx_grouped_weight_grad,
    mx_masked_matmul,
)
from sshsdp_mxfp.gemm.limits import GemmSizes
from sshsdp_mxfp.gemm.linear import mx_grouped_linear, mx_linear
from sshsdp_mxfp.gemm.matmul import mx_matmul, mx_weight_grad
from sshsdp_mxfp.gemm.module import MXLinear, reuse_weights
from sshsdp_mxfp.gemm.operand import GemmOperand
from sshsdp_mxfp.gemm.weight import QuantizedWeight, quantize_weight

__all__ = [
    "Backend",
    "BackendError",
    "GemmCapabilities",
    "GemmChoice",
    "GemmOperand",
    "GemmProblem",
    "GemmSizes",
    "MXLinear",
    "QuantizedWeight",
    "WeightGrad",
    "choose_gemm",
    "fp8_matmul",
    "mx_grouped_linear",
    "mx_grouped_matmul",
    "mx_grouped_weight_grad",
    "mx_linear",
    "mx_masked_matmul",
    "mx_matmul",
    "mx_weight_grad",
    "probe_gemm",
    "quantize_weight",
    "reuse_weights",
]
