"""Bit-exact block-scaled number formats for PyTorch: MXFP8, MXFP6 and MXFP4.

Elements of 8, 6 or 4 bits that share an E8M0 scale per block, after the OCP Microscaling Formats
(MX) specification 1.0.
"""

from sshsdp_mxfp.batch import QuantizeBatch, ScaleBatch, quantize_both
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
from sshsdp_mxfp.kernels import MissingTritonError, QuantizeJob
from sshsdp_mxfp.layouts import (
    Float32Layout,
    KGroupedPackedLayout,
    KGroupedSwizzledLayout,
    PackedLayout,
    PlainLayout,
    RowGroups,
    ScaleLayout,
    ScaleSpan,
    ScaleWrite,
    StackedLayout,
    SwizzledLayout,
    codes_of_scales,
    pack_scales,
    pack_span,
    pack_spans,
    scales_of_codes,
    unpack_grid,
    unpack_scales,
    write_scales,
)
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
    "Float32Layout",
    "Format",
    "Fragment",
    "KGroupedPackedLayout",
    "KGroupedSwizzledLayout",
    "MXTensor",
    "MissingTritonError",
    "NonFiniteError",
    "PackedLayout",
    "PlainLayout",
    "QuantizeBatch",
    "QuantizeJob",
    "QuantizedFragment",
    "Ragged",
    "RowGroups",
    "Rule",
    "ScaleBatch",
    "ScaleLayout",
    "ScaleSpan",
    "ScaleWrite",
    "StackedLayout",
    "Stochastic",
    "SwizzledLayout",
    "cast_fragment",
    "codes_of_scales",
    "dequantize",
    "pack_scales",
    "pack_span",
    "pack_spans",
    "partial_maxima",
    "quantize",
    "quantize_both",
    "quantize_fragment",
    "scales_of_codes",
    "unpack_grid",
    "unpack_scales",
    "write_scales",
]
