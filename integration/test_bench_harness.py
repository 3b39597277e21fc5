"""The harness for comparisons: schema, alternation, crashes, memory seen from outside."""

import json
import os
import textwrap
import time

import pytest
from testing.bench import main
from testing.bench_module import UnknownBenchmarkError, available, find, load
from testing.bench_program import ROOT, Program, ProgramError, run_program
from testing.bench_row import Row, summary

FAKE = """
import os, statistics, time
from testing.bench_program import Program
from testing.bench_row import Row, summary

def programs(*, quick):
    rounds = 1 if quick else 2
    return [
        Program(side, "work", side, ranks=ranks, arguments={"pace": pace}, rounds=rounds)
        for side, ranks, pace in (("slow", 2, 3.0), ("fast", 1, 1.0))
    ]

def slow(rank, pace):
    return {"seconds": [pace, pace + rank.rank], "start": [time.time()], "pid": [os.getpid()]}

fast = slow

def rows(samples):
    slow, fast = ([run.ranks[0]["seconds"][0] for run in samples.runs("work", side)]
                  for side in ("slow", "fast"))
    starts = {side: [run.ranks[0]["start"][0] for run in samples.runs("work", side)]
              for side in ("slow", "fast")}
    pids = [rank["pid"][0] for s in starts for run in samples.runs("work", s) for rank in run.ranks]
    ratio = statistics.median(s / f for s, f in zip(slow, fast, strict=True))
    return [
        Row("speedup/work", ratio, "x", 4.0, "higher", {"slow": summary(slow), "starts": starts}),
        Row("cost/work", ratio, "x", 3.5, "lower", {"pids": pids}),
        Row("note/work", ratio, "x", None, "lower"),
    ]
"""

TROUBLE = """
import os, time, mmap, subprocess, sys

def fails(rank, folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.path.join(folder, str(rank.rank)), "w").write(f"{os.getpid()} {child.pid}")
    if rank.rank == 1:
        while not os.path.exists(os.path.join(folder, "0")):
            time.sleep(0.01)
        raise ValueError("the reason")
    time.sleep(600)

def sleeps(rank):
    time.sleep(600)

def private(rank, mib):
    block = bytearray(mib << 20)
    time.sleep(0.3)
    return {"kept": [len(block)]}

def shared(rank, mib, path):
    with open(path, "r+b") as file:
        block = mmap.mmap(file.fileno(), mib << 20)
    for page in range(0, len(block), 4096):
        block[page] = 1
    rank.store.set(f"touched{rank.rank}", b"")
    rank.store.wait([f"touched{peer}" for peer in range(rank.world)])
    time.sleep(0.3)
    rank.store.set(f"rested{rank.rank}", b"")
    rank.store.wait([f"rested{peer}" for peer in range(rank.world)])
    return {"kept": [len(block)]}
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    root = tmp_path_factory.mktemp("workshop")
    for path, text in {
        "integration/benchmarks/fake.py": FAKE,
        "packages/part/benchmarks/trouble/__init__.py": TROUBLE,
        "packages/part/benchmarks/bench_host_side.py": "",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(textwrap.dedent(text))
    return root


@pytest.fixture(scope="module")
def outcome(workshop):
    """A full run of the fake benchmark: exit status and JSON."""
    file = workshop / "out.json"
    status = main(["fake", "--json", str(file)], root=workshop)
    return status, json.loads(file.read_text())


def test_json_has_exactly_the_agreed_fields(outcome):
    _, document = outcome
    assert list(document) == ["benchmark", "machine", "versions", "rows"]
    assert document["benchmark"] == "fake"
    assert set(document["machine"]) == {"cpu", "cores", "memory_gib", "kernel"}
    assert {"python", "torch", "sshsdp-mxfp"} <= set(document["versions"])
    for row in document["rows"]:
        assert list(row) == ["name", "value", "unit", "goal", "better", "details"]
        assert row["better"] in ("lower", "higher")
    assert document["rows"][0]["value"] == 3.0
    assert document["rows"][0]["details"]["slow"] == summary([3.0, 3.0])
    assert document["rows"][2]["goal"] is None


def test_a_missed_goal_is_no_failure(outcome):
    status, document = outcome
    assert document["rows"][0]["value"] < document["rows"][0]["goal"]
    assert status == 0


def test_sides_alternate_and_odd_rounds_are_reversed(outcome):
    starts = outcome[1]["rows"][0]["details"]["starts"]
    order = sorted((start, side) for side in starts for start in starts[side])
    assert [side for _, side in order] == ["slow", "fast", "fast", "slow"]


def test_every_rank_of_every_round_is_a_fresh_process(outcome):
    pids = outcome[1]["rows"][1]["details"]["pids"]
    assert len(pids) == len(set(pids)) == 2 * (2 + 1)
    assert os.getpid() not in pids


def test_the_table_marks_what_misses_its_goal(workshop, capsys):
    assert main(["fake", "--quick"], root=workshop) == 0
    lines = capsys.readouterr().out.splitlines()
    marks = {
        name: [mark for mark in ("MISSED", "met") if mark in line]
        for line in lines
        for name in ("speedup/work", "cost/work", "note/work")
        if name in line
    }
    assert marks == {"speedup/work": ["MISSED"], "cost/work": ["met"], "note/work": []}


def test_a_crash_names_the_reason_and_ends_the_whole_process_group(workshop, tmp_path):
    program = Program("sick", "work", "fails", 2, {"folder": str(tmp_path)}, timeout=60)
    with pytest.raises(ProgramError, match=r"sick \(work\) crashed on rank 1(.|\n)*the reason"):
        run_program(find(workshop, "trouble"), program)
    pids = [int(pid) for rank in "01" for pid in (tmp_path / rank).read_text().split()]
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in pids if _runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 4
    assert alive == []


def test_a_crash_ends_the_harness_with_an_error(workshop, capsys):
    file = workshop / "integration/benchmarks/sick.py"
    file.write_text(FAKE.replace("return {", "assert pace > 2, 'too fast'\n    return {"))
    try:
        assert main(["sick", "--quick", "--json", str(workshop / "sick.json")], root=workshop) == 1
    finally:
        file.unlink()
    assert "too fast" in capsys.readouterr().err
    assert not (workshop / "sick.json").exists()


def test_a_run_that_hangs_is_ended(workshop):
    program = Program("late", "work", "sleeps", timeout=0.5)
    with pytest.raises(ProgramError, match="did not finish within"):
        run_program(find(workshop, "trouble"), program)


def test_memory_counts_private_bytes_once_per_rank_and_shared_bytes_once(workshop, tmp_path):
    file = find(workshop, "trouble")
    pages = tmp_path / "pages"
    pages.write_bytes(bytes(256 << 20))
    peaks = {
        (kind, mib): sum(run_program(file, program).peak_memory) / 2**20
        for kind, mib in (("private", 1), ("private", 128), ("shared", 256))
        for program in [
            Program(
                *("side", "work", kind),
                ranks=2,
                arguments={"mib": mib} | ({"path": str(pages)} if kind == "shared" else {}),
                watch_memory=True,
            )
        ]
    }
    base = peaks["private", 1]
    assert peaks["private", 128] - base == pytest.approx(2 * 127, rel=0.15)
    # Each rank's own peak may hold the pages before the peer has touched them.
    assert 0.85 * 256 < peaks["shared", 256] - base < 1.6 * 256


def test_an_unknown_name_lists_what_exists(workshop):
    with pytest.raises(UnknownBenchmarkError, match=r"\(fake, trouble\), got 'nothing'"):
        find(workshop, "nothing")
    assert main(["nothing"], root=workshop) == 1


def test_a_name_that_two_benchmarks_have_is_refused(workshop):
    twin = workshop / "packages/part/benchmarks/fake.py"
    twin.write_text(FAKE)
    try:
        with pytest.raises(UnknownBenchmarkError, match=r"ambiguous: packages/part.*integration"):
            find(workshop, "fake")
    finally:
        twin.unlink()


def test_a_side_that_no_program_has_is_an_error(workshop, capsys):
    assert main(["fake", "--sides", "absent"], root=workshop) == 1
    assert "absent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "goal", "better", "missed"),
    [
        (1.0, 1.0, "lower", False),
        (1.1, 1.0, "lower", True),
        (1.0, 1.0, "higher", False),
        (0.9, 1.0, "higher", True),
        (float("nan"), 1.0, "higher", True),
        (9.0, None, "lower", False),
    ],
)
def test_goals_are_inclusive(value, goal, better, missed):
    assert Row("row", value, "x", goal, better).missed is missed


def test_summary_of_one_and_of_many():
    assert summary([2.0]) == {"median": 2.0, "spread": 0.0, "min": 2.0, "max": 2.0, "count": 1}
    many = summary([5.0, 1.0, 2.0, 3.0, 4.0])
    assert many == {"median": 3.0, "spread": 2.0, "min": 1.0, "max": 5.0, "count": 5}


@pytest.mark.parametrize("path", available(ROOT), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_benchmark_loads_and_its_programs_name_functions_it_has(path):
    module = load(path)
    for quick in (True, False):
        programs = module.programs(quick=quick)
        assert programs
        assert all(callable(getattr(module, program.function)) for program in programs)
        assert not quick or all(program.rounds == 1 for program in programs)


def _runs(pid):
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
