"""Bit-exact block-scaled number formats for PyTorch: MXFP8, MXFP6 and MXFP4.

Elements of 8, 6 or 4 bits that share an E8M0 scale per block, after the OCP Microscaling Formats
(MX) specification 1.0.
"""

from sshsdp_mxfp.dequantize import dequantize
from sshsdp_mxfp.distributed import (
    QuantizedFragment,
    cast_fragment,
    partial_maxima,
    quantize_fragment,
)
from sshsdp_mxfp.elements import E2M1, E2M3, E3M2, E4M3, E5M2, Element
from sshsdp_mxfp.formats import MXFP4, MXFP6, MXFP8, Format, Ragged, Rule
from sshsdp_mxfp.fragment import Fragment
from sshsdp_mxfp.quantize import NonFiniteError, quantize
from sshsdp_mxfp.rounding import Stochastic
from sshsdp_mxfp.tensor import MXTensor

__all__ = [
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E5M2",
    "MXFP4",
    "MXFP6",
    "MXFP8",
    "Element",
    "Format",
    "Fragment",
    "MXTensor",
    "NonFiniteError",
    "QuantizedFragment",
    "Ragged",
    "Rule",
    "Stochastic",
    "cast_fragment",
    "dequantize",
    "partial_maxima",
    "quantize",
    "quantize_fragment",
]
