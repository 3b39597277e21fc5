"""Padding and cuts of real layers: units of 1 and of 16 rows, over 8 to 1,024 ranks.

What can't be had without a cut is listed in the README, and the list there is this test's result.
"""

from fractions import Fraction
from math import prod
from pathlib import Path

import pytest

from sshsdp_shardchain import Degrees, Member, plan_layout

from .models import MODELS

README = Path(__file__).parents[1] / "README.md"
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
ROWS = (1, 16)
CASES = [(model, rows, ranks) for model in MODELS for rows in ROWS for ranks in RANKS]


def planned(model, rows, ranks, budget=0.03):
    """A layer whose matrices have units of so many rows, and whose vectors have none."""
    members = [
        Member(name, prod(shape), rows * shape[-1] if len(shape) > 1 else 1)
        for name, shape in MODELS[model].items()
    ]
    return plan_layout(members, Degrees.for_zero3(ranks), ranks, align=32, budget=budget)


def share(part, layout):
    return Fraction(part, layout.numel - layout.padding)


def row(model, rows, ranks):
    """A line of the README's table; None where nothing is cut."""
    layout = planned(model, rows, ranks)
    if not layout.choice.exchanged:
        return None
    free = planned(model, rows, ranks, budget=1.0)
    exchanged = f"{float(100 * share(layout.choice.exchanged, layout)):.2g}%"
    whole = "none found" if free.choice.exchanged else f"{float(share(free.padding, free)):.1%}"
    padding = f"{float(share(layout.padding, layout)):.2%}"
    return f"| {model} | {rows} | {ranks} | {padding} | {exchanged} | {whole} |"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rows", ROWS)
def test_padding_is_below_three_percent(model, rows):
    for ranks in RANKS:
        layout = planned(model, rows, ranks)
        assert share(layout.padding, layout) < Fraction(3, 100)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("model", [model for model in MODELS if "dense" not in model])
def test_nothing_is_cut_on_up_to_32_ranks(model, rows):
    for ranks in (8, 16, 32):
        assert planned(model, rows, ranks).choice.exchanged == 0


@pytest.mark.parametrize("model", ["DeepSeek-V3, expert layers", "GPT-OSS-120B"])
@pytest.mark.parametrize("rows", ROWS)
def test_expert_layers_are_not_cut_on_up_to_512_ranks(model, rows):
    for ranks in RANKS[:-1]:
        assert planned(model, rows, ranks).choice.exchanged == 0


def test_the_table_of_the_readme_is_what_comes_out():
    rows = [line for case in CASES if (line := row(*case)) is not None]
    listed = [line for line in README.read_text(encoding="utf-8").splitlines() if "%" in line]
    assert [line for line in listed if line.startswith("| ")] == rows


def test_layers_have_the_parameters_that_their_models_publish():
    billions = {model: sum(map(prod, shapes.values())) / 1e9 for model, shapes in MODELS.items()}
    # Layers, embeddings and heads: 8.03, 30.5, 116.8 and 671 billion.
    assert round(32 * billions["Llama-3-8B"] + 2 * 128256 * 4096 / 1e9, 2) == 8.03
    assert round(48 * billions["Qwen3-30B-A3B"] + 2 * 151936 * 2048 / 1e9, 1) == 30.5
    assert round(36 * billions["GPT-OSS-120B"] + 2 * 201088 * 2880 / 1e9, 1) == 116.8
    dense, experts = billions["DeepSeek-V3, dense layers"], billions["DeepSeek-V3, expert layers"]
    assert round(3 * dense + 58 * experts + 2 * 129280 * 7168 / 1e9) == 671
