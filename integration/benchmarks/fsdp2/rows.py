"""What the samples mean: ratios of paired runs, peak memory, difference of losses."""

import statistics

from testing.bench_program import Run
from testing.bench_row import Row, summary
from testing.bench_samples import Samples

SMALL, LARGE, WIDE = "64tok/2ranks", "512tok/2ranks", "64tok/4ranks"
MEMORY = "memory/64tok/2ranks"  # runs apart from SMALL: watching memory takes processor time


def rows(samples: Samples) -> list[Row]:
    """The rows whose sides were run."""
    result: list[Row] = []
    wide_goal = None
    for workload, goal in ((SMALL, 3.0), (LARGE, 1.4), (WIDE, None)):
        if samples.has(workload, "fsdp2", "sshsdp"):
            goal = wide_goal if workload == WIDE else goal
            row = _ratio(f"speedup/{workload}", samples, workload, "fsdp2", "sshsdp", goal)
            wide_goal = row.value if workload == SMALL else wide_goal
            result.append(row)
    for workload, goal in ((LARGE, 1.0), (SMALL, None)):
        if samples.has(workload, "paired"):
            result.append(_vs_floor(samples, workload, goal))
    if samples.has(MEMORY, "fsdp2", "sshsdp"):
        result.append(_memory(samples))
    result += [
        _loss_difference(samples, workload)
        for workload in (SMALL, LARGE, WIDE)
        if samples.has(workload, "fsdp2", "sshsdp")
    ]
    result += [
        _step_seconds(samples, workload, side)
        for workload in (SMALL, LARGE, WIDE)
        for side in ("fsdp2", "sshsdp")
        if samples.has(workload, side)
    ]
    return result


def _ratio(
    name: str,
    samples: Samples,
    workload: str,
    upper: str,
    lower: str,
    goal: float | None,
) -> Row:
    """Median over rounds of the ratio of two sides' median step times in the same round."""
    uppers, lowers = (_step_medians(samples, workload, side) for side in (upper, lower))
    ratios = [up / low for up, low in zip(uppers, lowers, strict=True)]
    details = {"ratio": summary(ratios)}
    details |= {
        f"{upper}_round_medians": summary(uppers),
        f"{lower}_round_medians": summary(lowers),
    }
    return Row(name, statistics.median(ratios), "x", goal, "higher", details)


def _vs_floor(samples: Samples, workload: str, goal: float | None) -> Row:
    """Median over steps of the ratio of our step to the floor's next to it."""
    ours, floor = (
        [second for run in samples.runs(workload, "paired") for second in _steps(run, name)]
        for name in ("seconds", "floor_seconds")
    )
    ratios = [up / low for up, low in zip(ours, floor, strict=True)]
    details = {"ratio": summary(ratios), "sshsdp_step": summary(ours), "floor_step": summary(floor)}
    return Row(f"vs_floor/{workload}", statistics.median(ratios), "x", goal, "lower", details)


def _step_seconds(samples: Samples, workload: str, side: str) -> Row:
    """Median over all rounds of a side's step times, for information."""
    steps = [second for run in samples.runs(workload, side) for second in _steps(run)]
    details = {"step": summary(steps)}
    name = f"step_seconds/{side}/{workload}"
    return Row(name, statistics.median(steps), "s", None, "lower", details)


def _step_medians(samples: Samples, workload: str, side: str) -> list[float]:
    return [statistics.median(_steps(run)) for run in samples.runs(workload, side)]


def _steps(run: Run, name: str = "seconds") -> list[float]:
    """Seconds of each step: its slowest rank's."""
    return [max(ranks) for ranks in zip(*(rank[name] for rank in run.ranks), strict=True)]


def _memory(samples: Samples) -> Row:
    """Sum over ranks of the peak proportional set size, ours / FSDP2's."""
    peaks, details = {}, {}
    for side in ("sshsdp", "fsdp2"):
        runs = samples.runs(MEMORY, side)
        sums = [sum(run.peak_memory) / 2**20 for run in runs]
        peaks[side] = statistics.median(sums)
        details[f"{side}_peak_mib"] = summary(sums)
        before = [sum(rank["memory_before"][0] for rank in run.ranks) / 2**20 for run in runs]
        details[f"{side}_before_model_mib"] = summary(before)
    value = peaks["sshsdp"] / peaks["fsdp2"]
    return Row("peak_memory_ratio/64tok/2ranks", value, "x", 0.6, "lower", details)


def _loss_difference(samples: Samples, workload: str) -> Row:
    """Largest difference over rounds of the last step's loss, averaged over ranks."""
    finals = {
        side: [
            statistics.fmean(rank["losses"][-1] for rank in run.ranks)
            for run in samples.runs(workload, side)
        ]
        for side in ("sshsdp", "fsdp2")
    }
    differences = [abs(ours - theirs) for ours, theirs in zip(*finals.values(), strict=True)]
    details = {"difference": summary(differences)}
    details |= {f"{side}_final_loss": summary(values) for side, values in finals.items()}
    return Row(f"loss_difference/{workload}", max(differences), "nats", 1e-3, "lower", details)
