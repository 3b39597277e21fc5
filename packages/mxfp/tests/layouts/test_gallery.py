"""The page that draws the layouts: every cell in it, and every example."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch

from sshsdp_mxfp import layouts
from sshsdp_mxfp.layouts import pack_scales

PAGE = Path(__file__).parents[4] / "docs" / "mxfp_layouts.md"
TEXT = PAGE.read_text() if PAGE.exists() else ""
DRAWINGS = re.findall(
    r"^```text\n(\w+Layout\([^\n]*\))\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL
)
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not TEXT, reason="the page is not part of a package's archive")


def names(plan):
    """What each cell holds, from operands packed with numbers instead of scales."""
    count = torch.Size(plan.logical_shape).numel()
    numbers = torch.arange(count).view(plan.logical_shape)
    if plan.cell == torch.float32:
        values = (plan.storage(pack_scales(numbers + 2.0, plan)) - 2).int().tolist()
    else:
        low, high = (
            plan.storage(pack_scales((digit + 1).to(torch.uint8), plan)).int() - 1
            for digit in (numbers % 250, numbers // 250)
        )
        values = (high * 250 + low).tolist()
    logical = list(product(*map(range, plan.logical_shape)))
    return [",".join(map(str, logical[value])) if value >= 0 else "--" for value in values]


@pytest.mark.parametrize(("plan", "lines"), DRAWINGS, ids=[plan for plan, _ in DRAWINGS])
def test_drawing(plan, lines):
    wanted = names(eval(plan, vars(layouts)))
    drawn = {}
    for line in lines.splitlines():
        if line != "...":
            start, cells = line.split(":")
            drawn |= dict(enumerate(cells.replace("|", " ").split(), int(start)))
    assert drawn == {cell: wanted[cell] for cell in drawn}
    if "..." not in lines:
        assert len(drawn) == len(wanted)


def test_every_layout_is_drawn():
    drawn = {plan.split("(")[0] for plan, _ in DRAWINGS}
    known = {name for name in layouts.__all__ if name.endswith("Layout")}
    assert drawn == known - {"ScaleLayout", "MatrixLayout"}


def test_examples():
    """One after the other: later ones use names of earlier ones."""
    assert EXAMPLES
    exec("\n".join(EXAMPLES), {})


def test_sizes_in_the_table():
    plans = [layouts.PlainLayout, layouts.PackedLayout, layouts.SwizzledLayout]
    assert {plan(4096, 4096 // 32).nbytes for plan in plans} == {512 << 10}
    assert layouts.Float32Layout(4096, 4096 // 128).nbytes == 512 << 10
    assert TEXT.count("| 512 KiB |") == 4
