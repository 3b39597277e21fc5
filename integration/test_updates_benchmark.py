"""The benchmark of updates: both sides train, Muon's units are those it says, rows are ratios."""

import pytest
from testing.bench_module import find, load
from testing.bench_program import ROOT, Program, Run, run_program
from testing.bench_samples import Samples

from sshsdp_updates.newton_schulz import newton_schulz_cost

FILE = find(ROOT, "updates")
updates = load(FILE)
TINY = {"sequences": 1, "tokens": 8, "warmup": 1, "steps": 1}


@pytest.fixture(scope="module")
def answers():
    """What every rank of every side gave."""
    return {
        side: run_program(FILE, Program(side, "tiny", side, ranks=2, arguments=TINY)).ranks
        for side in ("adamw", "muon")
    }


def test_both_sides_start_alike_and_take_different_steps(answers):
    (adamw, muon) = ([rank["losses"] for rank in answers[side]] for side in ("adamw", "muon"))
    assert [losses[0] for losses in adamw] == [losses[0] for losses in muon]
    assert all(a[1] != m[1] for a, m in zip(adamw, muon, strict=True))


def test_updates_are_timed_as_a_part_of_each_step(answers):
    for rank in (*answers["adamw"], *answers["muon"]):
        ([update], [step]) = rank["update_seconds"], rank["seconds"]
        assert 0 < update < step


def test_muon_iterates_over_heads_and_whole_matrices(answers):
    head, matrix = newton_schulz_cost((64, 512), 5), newton_schulz_cost((512, 2048), 5)
    assert answers["muon"][0]["operations"] == [6 * (4 * 8 * head + 2 * matrix)]


def test_rows_say_what_muon_adds_in_percent():
    def run(slow, step, update):
        seconds = {"seconds": [step * slow, step * slow / 2], "update_seconds": [update * slow] * 2}
        ranks = (seconds | {"operations": [1.0]}, seconds | {"operations": [1.0]})
        return Run(ranks)

    paces = {"adamw": (4.0, 0.5), "muon": (5.0, 1.0)}
    runs = {
        (workload, side): [run(slow, *pace) for slow in (1.0, 4.0, 2.0)]
        for workload in (updates.SMALL, updates.LARGE)
        for side, pace in paces.items()
    }
    rows = {row.name: row for row in updates.rows(Samples(runs))}
    assert rows[f"muon_over_adamw/{updates.SMALL}"].value == pytest.approx(25.0)
    assert rows[f"update_share/muon/{updates.LARGE}"].value == pytest.approx(30.0)
    products = rows[f"muon_products_over_training/{updates.LARGE}"]
    assert products.details["training"] == 6 * 19_143_168 * 2 * 4 * 512
    only = updates.rows(Samples({(updates.SMALL, "adamw"): runs[updates.SMALL, "adamw"]}))
    assert [row.name for row in only] == [f"update_share/adamw/{updates.SMALL}"]
