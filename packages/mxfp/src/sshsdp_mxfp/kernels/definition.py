"""The one definition of the arithmetic and of the index formulas, as device functions of Triton.

The sources stay in `sshsdp_mxfp.bits` and `sshsdp_mxfp.layouts.formulas`; here they get scopes that
Triton accepts. Nothing is written twice.
"""

# mypy: disable-error-code="import-untyped,import-not-found"

from types import FunctionType, ModuleType
from typing import Any

import triton
import triton.language as tl

from sshsdp_mxfp import bits
from sshsdp_mxfp.layouts import formulas


def _compiled(module: ModuleType, *names: str) -> dict[str, Any]:
    """Functions of a module for kernels; what others call comes first."""
    scope: dict[str, Any] = {"__name__": module.__name__, "tl": tl}
    scope |= {"Tensor": tl.tensor, "Index": tl.tensor}  # annotations
    for name in names:
        scope[name] = triton.jit(FunctionType(getattr(module, name).__code__, scope, name))
    return scope


_BITS = _compiled(
    bits,
    "smaller",
    "scale_code",
    "multiplier_bits",
    "value_bits",
    "encode",
    "encode_stochastic",
    "decode_bits",
)
scale_code = _BITS["scale_code"]
multiplier_bits = _BITS["multiplier_bits"]
value_bits = _BITS["value_bits"]
encode = _BITS["encode"]
encode_stochastic = _BITS["encode_stochastic"]
decode_bits = _BITS["decode_bits"]

LAYOUTS = ("plain", "packed", "float32", "swizzled")
_FORMULAS = _compiled(
    formulas, *(f"{name}_{kind}" for name in LAYOUTS for kind in ("offset", "position"))
)
OFFSETS = {name: _FORMULAS[f"{name}_offset"] for name in LAYOUTS}
POSITIONS = {name: _FORMULAS[f"{name}_position"] for name in LAYOUTS}
