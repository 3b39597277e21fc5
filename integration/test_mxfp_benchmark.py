"""The quantization benchmark measures what it says, here in a small form that CI can run."""

import pytest
from testing.bench_module import find, load
from testing.bench_program import ROOT, Run, run_program
from testing.bench_samples import Samples

FILE = find(ROOT, "mxfp")
mxfp = load(FILE)


def test_the_quick_form_times_every_side():
    program = mxfp.programs(quick=True)[0]
    (seconds,) = run_program(FILE, program).ranks
    assert {"memcpy", "quantize", "dequantize"} <= set(seconds)
    assert all(len(times) == program.arguments["repeats"] for times in seconds.values())
    assert all(value > 0 for times in seconds.values() for value in times)


def test_the_full_form_has_the_stated_sizes():
    arguments = [program.arguments for program in mxfp.programs(quick=False)]
    assert [(each["size"], each["block"]) for each in arguments] == [
        (4096, "32x32"),
        (4096, "1x32"),
    ]


@pytest.mark.parametrize("torchao", [True, False])
def test_rows_are_medians_of_best_times_against_goals_and_bars(torchao):
    workload = mxfp.programs(quick=False)[0].workload
    sides = {"memcpy": [3.0, 1.0], "dequantize": [2.0, 2.0]}
    sides |= {"torchao": [20.0, 30.0]} if torchao else {}
    runs = [Run(({**sides, "quantize": [best, 99.0]},)) for best in (8.0, 9.0, 12.0)]
    rows = {row.name: row for row in mxfp.rows(Samples({(workload, mxfp.SIDE): runs}))}
    found = {name: (row.value, row.goal, row.better) for name, row in rows.items()}
    expected = {
        f"quantize_per_memcpy/{workload}": (9.0, 8.0, "lower"),
        f"quantize_per_memcpy/{workload}/bar": (9.0, 10.0, "lower"),
        f"dequantize_per_memcpy/{workload}": (2.0, None, "lower"),
    }
    if torchao:
        expected[f"quantize_per_torchao/{workload}"] = (0.45, 1.0, "lower")
    assert found == expected
