"""Pages that show formats and the command: every example, every drawing, every output."""

import re
from pathlib import Path

import pytest
import torch

import sshsdp_mxfp
from sshsdp_mxfp import MXFP4, MXFP8, MXTensor, dequantize, quantize
from sshsdp_mxfp.elements import ELEMENTS
from sshsdp_mxfp.explain import main

README = Path(__file__).parents[2] / "README.md"
PAGE = Path(__file__).parents[4] / "docs" / "mxfp_formats.md"
TEXT = PAGE.read_text() if PAGE.exists() else ""
SHOWN = re.compile(
    r"^```text\n\$ python -m sshsdp_mxfp (explain [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
OUTPUTS = SHOWN.findall(README.read_text() + "\n" + TEXT)

needs_page = pytest.mark.skipif(not TEXT, reason="the page is not part of a package's archive")


def drawing(start):
    """Lines of the drawing that begins so."""
    return next(
        text for text in re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL) if text.startswith(start)
    ).splitlines()


def power(text):
    return 2.0 ** int(text.removeprefix("2^"))


@pytest.mark.parametrize(("command", "output"), OUTPUTS, ids=[command for command, _ in OUTPUTS])
def test_the_command_prints_what_is_shown(monkeypatch, capsys, command, output):
    pytest.importorskip("rich", reason="needs the extra explain")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command.split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in output.splitlines()] == printed


def test_the_readme_shows_the_command():
    assert SHOWN.search(README.read_text())


@needs_page
def test_examples():
    examples = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    exec("\n".join(examples), {})


@needs_page
def test_table_of_elements():
    rows = re.findall(r"^\| `(E\dM\d)` \| `(MXFP\d)` \| `(\w+)` (.*)\|$", TEXT, re.MULTILINE)
    assert {name.lower() for name, *_ in rows} == set(ELEMENTS)
    for name, kind, layout, rest in rows:
        element = ELEMENTS[name.lower()]
        assert element in getattr(sshsdp_mxfp, kind).elements
        assert layout == "s" + "e" * element.exponent_bits + "m" * element.mantissa_bits
        bias, largest, normal, smallest = (cell.strip() for cell in rest.split("|")[1:5])
        assert (int(bias), float(largest)) == (element.bias, element.largest)
        assert power(normal) == 2.0 ** (1 - element.bias)
        assert power(smallest) == element.smallest


@needs_page
def test_magnitudes():
    small, codes, _, large, large_codes = (line.split() for line in drawing("E2M1  0"))
    kinds = [(MXFP4, small, codes), (MXFP8, large, large_codes)]
    for kind, values, codes in kinds:
        pairs = [pair for pair in zip(values[1:], codes[1:], strict=True) if pair[0][0].isdigit()]
        for value, code in pairs:
            x = torch.full((1, 32), float(value))
            x[0, 1] = kind().element.largest  # so that the scale is 1
            assert int(quantize(x, kind()).codes[0, 0]) & (0xF if kind is MXFP4 else 0xFF) == int(
                code, 16
            )
    assert len(small) == 9


@needs_page
def test_blocks():
    titles, *lines = drawing("block (1, 4)")
    blocks = [(int(rows), int(columns)) for rows, columns in re.findall(r"\((\d), (\d)\)", titles)]
    for place, block in enumerate(blocks):
        drawn = [[int(n) for n in line.split()[8 * place : 8 * place + 8]] for line in lines]
        fmt = MXFP8(block)
        grid = fmt.grid_shape((4, 8))
        scale = 127 + torch.arange(grid[0] * grid[1], dtype=torch.uint8).view(grid)
        ones = torch.full((4, 8), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
        q = MXTensor(ones, scale.view(torch.float8_e8m0fnu), fmt, torch.Size((4, 8)))
        assert dequantize(q).log2().int().tolist() == drawn


@needs_page
def test_rules():
    head, *lines = (line.split() for line in drawing("amax"))
    for amax, *cells in lines:
        for rule, (scale, value) in zip(
            head[1:], zip(cells[::2], cells[1::2], strict=True), strict=True
        ):
            q = quantize(torch.tensor([[float(amax), 0.0]]), MXFP8((1, 2), rule=rule))
            assert 2.0 ** (q.scale_codes.item() - 127) == power(scale)
            assert dequantize(q)[0, 0] == float(value)


@needs_page
def test_bits_per_element():
    rows = re.findall(r"^\| (\d+x\d+)[^|]*\| ([\d.]+) \| ([\d.]+) \|$", TEXT, re.MULTILINE)
    for block, *bits in rows:
        cut = tuple(map(int, block.split("x")))
        for kind, shown in zip((MXFP8, MXFP4), bits, strict=True):
            assert round(kind(cut).bits_per_element, 3) == float(shown)
    assert len(rows) == 2
