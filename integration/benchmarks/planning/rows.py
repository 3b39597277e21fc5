"""What the samples mean: seconds, GiB and microseconds, against goals and hard bars."""

import statistics
from collections.abc import Sequence

from testing.bench_program import Run
from testing.bench_row import Row, summary
from testing.bench_samples import Samples

VIEW = "1M members/131072 ranks"
TRILLION = "trillion-parameter MoE"
HOOKS = "64 tiny groups"
SIDE = "sshsdp"


def rows(samples: Samples) -> list[Row]:
    """The rows of what was run; a hard bar is a row of its own, below its goal."""
    result: list[Row] = []
    if samples.has(VIEW, SIDE):
        runs = samples.runs(VIEW, SIDE)
        result += _limits(f"view_seconds/{VIEW}", _first(runs, "seconds"), "s", 5.0, 10.0)
        gibibytes = [nbytes / 2**30 for nbytes in _first(runs, "bytes")]
        result += _limits(f"view_memory/{VIEW}", gibibytes, "GiB", 0.25, None)
    if samples.has(TRILLION, SIDE):
        seconds = _first(samples.runs(TRILLION, SIDE), "seconds")
        result += _limits(f"plan_seconds/{TRILLION}", seconds, "s", 10.0, None)
    if samples.has(HOOKS, SIDE):
        costs = [_hook_cost(run) for run in samples.runs(HOOKS, SIDE)]
        result += _limits(f"hooks_per_group/{HOOKS}", costs, "us", None, None)
    return result


def _limits(
    name: str, values: Sequence[float], unit: str, goal: float | None, bar: float | None
) -> list[Row]:
    value, details = statistics.median(values), {"rounds": summary(values)}
    result = [Row(name, value, unit, goal, "lower", details)]
    if bar is not None:
        result.append(Row(f"{name}/bar", value, unit, bar, "lower", details))
    return result


def _first(runs: Sequence[Run], key: str) -> list[float]:
    return [run.ranks[0][key][0] for run in runs]


def _hook_cost(run: Run) -> float:
    """Microseconds that a group's forward and backward cost beyond those of plain modules."""
    (answer,) = run.ranks
    beyond = statistics.median(answer["sharded"]) - statistics.median(answer["plain"])
    return 1e6 * beyond / answer["groups"][0]
