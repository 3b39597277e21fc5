"""Runs the index formulas in Triton's interpreter, or compiles them: ``kernels.py [ARCH ...]``.

A program of its own, because Triton reads TRITON_INTERPRET where functions are decorated.
"""

import sys
import types

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sshsdp_mxfp.layouts import Float32Layout, PackedLayout, PlainLayout, SwizzledLayout, formulas


def compiled(name):
    """The formula's own source, seeing triton.language, which the interpreter wants."""
    return triton.jit(
        types.FunctionType(getattr(formulas, name).__code__, {"tl": tl, "Index": tl.tensor}, name)
    )


FORMULAS = {
    layout: (compiled(f"{layout}_offset"), compiled(f"{layout}_position"))
    for layout in ("plain", "packed", "float32", "swizzled")
}


@triton.jit
def offsets(
    out, first, blocks, size, offset: tl.constexpr, height: tl.constexpr, width: tl.constexpr
):
    row = first + tl.arange(0, height).to(tl.int64)[:, None]
    block = tl.arange(0, width).to(tl.int64)[None, :]
    cell = offset(row, block, size)
    place = (row - first) * blocks + block
    tl.store(out + place, cell, mask=block < blocks)


@triton.jit
def positions(rows, blocks, first, size, position: tl.constexpr, count: tl.constexpr):
    index = tl.arange(0, count)
    row, block = position(first + index.to(tl.int64), size)
    tl.store(rows + index, row)
    tl.store(blocks + index, block)


def interpret(plan, size, layout, first):
    """Compare a window of rows, and one of cells, with the layout's own functions."""
    offset, position = FORMULAS[layout]
    count, blocks = 64, plan.blocks
    out = torch.empty(count, blocks, dtype=torch.int64)
    offsets[(1,)](out, first, blocks, size, offset, count, triton.next_power_of_2(blocks))
    row = torch.arange(first, first + count).unsqueeze(1)
    assert torch.equal(out, plan.offset(row, torch.arange(blocks))), plan
    start = int(out[0, 0])
    rows, columns = (torch.empty(512, dtype=torch.int64) for _ in range(2))
    positions[(1,)](rows, columns, start, size, position, 512)
    wanted = plan.position(torch.arange(start, start + 512))
    assert torch.equal(rows, wanted[0]), plan
    assert torch.equal(columns, wanted[1]), plan


def interpret_all():
    for first in (0, 96, 1 << 33):  # the last beyond 32 bits
        rows, blocks = first + 70, 7
        packed, floats = PackedLayout(rows, blocks), Float32Layout(rows, blocks)
        swizzled = SwizzledLayout(rows, blocks)
        interpret(PlainLayout(rows, blocks), blocks, "plain", first)
        interpret(packed, packed.pitch, "packed", first)
        interpret(floats, floats.pitch, "float32", first)
        interpret(swizzled, swizzled.tiles, "swizzled", first)


def compile_all(arch):
    sizes = {"first": "i64", "size": "i64"}
    for offset, position in FORMULAS.values():
        for kernel, arguments, constants in (
            (
                offsets,
                {"out": "*i64", **sizes, "blocks": "i32"},
                {"offset": offset, "height": 64, "width": 8},
            ),
            (
                positions,
                {"rows": "*i64", "blocks": "*i64", **sizes},
                {"position": position, "count": 512},
            ),
        ):
            signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            assert triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm["cubin"]


for arch in sys.argv[1:]:
    compile_all(int(arch))
if not sys.argv[1:]:
    interpret_all()
print("done")
