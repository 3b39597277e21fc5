"""Scale layouts that GEMM kernels read, and their inverses.

A layout is a plan in integers (`PackedLayout(rows=..., blocks=...)`): shape, strides, bytes and
alignment of a kernel's operand, and the index arithmetic. `pack_scales` and `write_scales` fill an
operand, `pack_span` a part of its storage, `unpack_scales` and `unpack_grid` read it back.
"""

from sshsdp_mxfp.layouts.codes import codes_of_scales, scales_of_codes
from sshsdp_mxfp.layouts.float32 import Float32Layout
from sshsdp_mxfp.layouts.k_grouped import KGroupedPackedLayout, KGroupedSwizzledLayout
from sshsdp_mxfp.layouts.layout import LayoutPart, MatrixLayout, ScaleLayout
from sshsdp_mxfp.layouts.packed import PackedLayout
from sshsdp_mxfp.layouts.plain import PlainLayout
from sshsdp_mxfp.layouts.read import unpack_grid, unpack_scales
from sshsdp_mxfp.layouts.row_groups import RowGroups
from sshsdp_mxfp.layouts.span import ScaleSpan, pack_span, pack_spans
from sshsdp_mxfp.layouts.stacked import StackedLayout
from sshsdp_mxfp.layouts.swizzled import SwizzledLayout
from sshsdp_mxfp.layouts.write import ScaleWrite, pack_scales, write_scales

__all__ = [
    "Float32Layout",
    "KGroupedPackedLayout",
    "KGroupedSwizzledLayout",
    "LayoutPart",
    "MatrixLayout",
    "PackedLayout",
    "PlainLayout",
    "RowGroups",
    "ScaleLayout",
    "ScaleSpan",
    "ScaleWrite",
    "StackedLayout",
    "SwizzledLayout",
    "codes_of_scales",
    "pack_scales",
    "pack_span",
    "pack_spans",
    "scales_of_codes",
    "unpack_grid",
    "unpack_scales",
    "write_scales",
]
