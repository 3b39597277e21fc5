"""Kernels of scale layouts write and read what the CPU does."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_mxfp import (
    Float32Layout,
    KGroupedPackedLayout,
    PackedLayout,
    PlainLayout,
    ScaleSpan,
    ScaleWrite,
    StackedLayout,
    SwizzledLayout,
    pack_scales,
    pack_span,
    write_scales,
)
from sshsdp_mxfp.kernels.relayout import prepare_read, prepare_spans, prepare_writes
from sshsdp_mxfp.layouts.write import CheckedWrite

LAYOUTS = [PlainLayout, PackedLayout, Float32Layout, SwizzledLayout]


def codes(rows, blocks, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, blocks), dtype=torch.uint8, generator=generator)


def run(launches):
    for launch in launches:
        launch.run()
    return len(launches)


def same(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@st.composite
def rectangles(draw):
    """A layout, and a write that begins at any row and block, transposed or not."""
    kind = draw(st.sampled_from(LAYOUTS))
    rows, blocks, band = (draw(st.integers(1, top)) for top in (150, 40, 40))
    row, block = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    layout = kind(rows + row, blocks + block)
    scales = codes(-(-rows // band), blocks, draw(st.integers(0, 9)))
    if draw(st.booleans()):
        scales = scales.t().contiguous().t()
    return layout, scales, row, block, band, rows


@settings(max_examples=20)
@given(st.lists(rectangles(), min_size=1, max_size=4), st.booleans())
def test_rectangles(cases, direct):
    written, wanted = [], []
    for layout, scales, row, block, band, rows in cases:
        for operands in (written, wanted):
            operand = layout.operand(torch.full((layout.nbytes,), 3, dtype=torch.uint8))
            operands.append(ScaleWrite(scales, layout, operand, row, block, 0, band, rows))
    groups = [[write] for write in written] if direct else [written]
    for group in groups:
        count = run(prepare_writes([CheckedWrite(write) for write in group], direct=direct))
        assert count == len({type(write.layout) for write in group})
    write_scales(wanted)
    for mine, theirs in zip(written, wanted, strict=True):
        assert same(mine.layout.storage(mine.operand), theirs.layout.storage(theirs.operand))


@settings(max_examples=20)
@given(st.lists(rectangles(), min_size=1, max_size=4), st.data(), st.booleans())
def test_spans_with_their_padding(cases, data, direct):
    spans = []
    for layout, _, _, _, band, _ in cases:
        scales = codes(-(-layout.rows // band), layout.blocks)
        start = data.draw(st.integers(0, layout.cells))
        stop = data.draw(st.integers(start, layout.cells))
        out = torch.full((stop - start,), 9, dtype=layout.cell)
        spans.append(ScaleSpan(scales, layout, start, stop, out, band))
    parts = [part for span in spans for part in span.parts()]
    for group in [[part] for part in parts] if direct else [parts]:
        run(prepare_spans(group, direct=direct))
    for span in spans:
        wanted = pack_span(span.scales, span.layout, span.start, span.stop, band=span.band)
        assert same(span.out, wanted)


@settings(max_examples=15)
@given(rectangles())
def test_reading(case):
    layout, _, _, _, band, _ = case
    operand = pack_scales(codes(-(-layout.rows // band), layout.blocks), layout, band=band)
    read = torch.empty(-(-layout.rows // band), layout.blocks, dtype=layout.cell)
    prepare_read(layout.storage(operand), layout, read, band).run()
    again = pack_scales(read, layout, band=band)
    assert same(layout.storage(again), layout.storage(operand))


def test_operands_of_several_matrices():
    stacked = StackedLayout(PackedLayout(70, 6), 3)
    grouped = KGroupedPackedLayout(36, (5, 0, 3))
    scales = [torch.stack([codes(70, 6, k) for k in range(3)]), codes(36, 8)]
    spans = [
        ScaleSpan(each, layout, 0, layout.cells, torch.full((layout.cells,), 9, dtype=layout.cell))
        for each, layout in zip(scales, (stacked, grouped), strict=True)
    ]
    assert run(prepare_spans([part for span in spans for part in span.parts()])) == 1
    for span in spans:
        assert same(span.out, span.layout.storage(pack_scales(span.scales, span.layout)))


def test_floats_stay_floats():
    layout = Float32Layout(9, 5)
    scales = torch.rand(9, 5)
    out = torch.empty(layout.cells)
    run(prepare_spans(ScaleSpan(scales, layout, 0, layout.cells, out).parts()))
    assert torch.equal(out, pack_span(scales, layout, 0, layout.cells))


def test_indices_beyond_32_bits():
    first, count = (1 << 31) + 5, 70
    layout = PlainLayout(first + count, 1)
    storage = torch.empty(layout.cells, dtype=torch.uint8)  # 2 GiB that are never touched
    scales = codes(count, 1)
    write = CheckedWrite(ScaleWrite(scales, layout, layout.operand(storage), row=first))
    run(prepare_writes([write]))
    assert torch.equal(storage[first:], scales.flatten())
