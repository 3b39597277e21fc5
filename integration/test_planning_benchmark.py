"""The planning benchmark measures what it says, here in a small form that CI can run."""

import pytest
from testing.bench_module import find, load
from testing.bench_program import ROOT, Run, run_program
from testing.bench_samples import Samples

FILE = find(ROOT, "planning")
planning = load(FILE)


@pytest.fixture(scope="module")
def answers():
    """What every program of the quick form gave, by workload."""
    programs = planning.programs(quick=True)
    return {program.workload: run_program(FILE, program) for program in programs}


def test_the_quick_form_gives_every_row(answers):
    runs = {(workload, "sshsdp"): [run] for workload, run in answers.items()}
    rows = {row.name: row.value for row in planning.rows(Samples(runs))}
    assert list(rows) == [
        "view_seconds/1M members/131072 ranks",
        "view_seconds/1M members/131072 ranks/bar",
        "view_memory/1M members/131072 ranks",
        "plan_seconds/trillion-parameter MoE",
        "hooks_per_group/64 tiny groups",
    ]
    assert all(value >= 0 for value in rows.values())


def test_a_rank_holds_its_share_of_the_members(answers):
    (answer,) = answers["1M members/131072 ranks"].ranks
    weights, gradients, optimizer = answer["held"]
    assert weights == gradients == pytest.approx(10_000 / 8, abs=2)
    assert optimizer == pytest.approx(10_000 / 1024, abs=2)


def test_the_command_writes_its_tables(answers):
    (answer,) = answers["trillion-parameter MoE"].ranks
    assert answer["written"][0] > 2000


def test_the_full_form_has_the_stated_sizes():
    arguments = {p.workload: p.arguments for p in planning.programs(quick=False)}
    assert arguments["1M members/131072 ranks"] == {"members": 1_000_000, "ranks": 131_072}
    assert arguments["trillion-parameter MoE"]["nodes"] * 8 == 131_072


def test_rows_are_medians_against_goals_and_bars():
    runs = {
        (planning.VIEW, "sshsdp"): [
            Run(({"seconds": [seconds], "bytes": [2.0**28], "held": [1, 1, 1]},))
            for seconds in (6.0, 2.0, 7.0)
        ],
        (planning.TRILLION, "sshsdp"): [Run(({"seconds": [11.0]},))],
        (planning.HOOKS, "sshsdp"): [
            Run(({"plain": [1e-3, 2e-3, 3e-3], "sharded": [4e-3, 9e-3], "groups": [9]},))
        ],
    }
    rows = [(row.value, row.goal, row.missed) for row in planning.rows(Samples(runs))]
    assert rows == [
        (6.0, 5.0, True),
        (6.0, 10.0, False),
        (0.25, 0.25, False),
        (11.0, 10.0, True),
        (pytest.approx(500.0), None, False),
    ]
    assert planning.rows(Samples({})) == []
