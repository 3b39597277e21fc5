"""What the samples mean: how much longer a step with Muon takes, and how long updates take."""

import statistics

from testing.bench_program import Run
from testing.bench_row import Row, summary
from testing.bench_samples import Samples

from .shared import reference

SMALL, LARGE = "64tok/2ranks", "512tok/2ranks"
_TOKENS = {SMALL: 64, LARGE: 512}  # of a microbatch of a rank


def rows(samples: Samples) -> list[Row]:
    """The rows whose sides were run."""
    result: list[Row] = []
    for workload in (SMALL, LARGE):
        if samples.has(workload, "adamw", "muon"):
            result += [_over(samples, workload), _products(samples, workload)]
    return result + [
        _share(samples, workload, side)
        for workload in (SMALL, LARGE)
        for side in ("adamw", "muon")
        if samples.has(workload, side)
    ]


def _over(samples: Samples, workload: str) -> Row:
    """Median over rounds of what a step with Muon takes beyond one with AdamW of the same round."""
    medians = {
        side: [statistics.median(_slowest(run, "seconds")) for run in samples.runs(workload, side)]
        for side in ("muon", "adamw")
    }
    beyond = [100 * (m / a - 1) for m, a in zip(medians["muon"], medians["adamw"], strict=True)]
    details = {f"{side}_round_medians": summary(values) for side, values in medians.items()}
    details["beyond"] = summary(beyond)
    value = statistics.median(beyond)
    return Row(f"muon_over_adamw/{workload}", value, "%", None, "lower", details)


def _products(samples: Samples, workload: str) -> Row:
    """The same if only products counted, all at one rate.

    Operations of the iteration over those of forward and backward, 6 per parameter and token.
    """
    run = samples.runs(workload, "muon")[0]
    tokens = _TOKENS[workload] * reference.MICROBATCHES * len(run.ranks)
    training = 6 * reference.PARAMETERS * tokens
    iteration = run.ranks[0]["operations"][0]
    details = {"iteration": iteration, "training": training}
    name = f"muon_products_over_training/{workload}"
    return Row(name, 100 * iteration / training, "%", None, "lower", details)


def _share(samples: Samples, workload: str, side: str) -> Row:
    """Median over all steps of the update's part of a step."""
    shares = [
        100 * update / step
        for run in samples.runs(workload, side)
        for update, step in zip(
            _slowest(run, "update_seconds"), _slowest(run, "seconds"), strict=True
        )
    ]
    name = f"update_share/{side}/{workload}"
    return Row(name, statistics.median(shares), "%", None, "lower", {"share": summary(shares)})


def _slowest(run: Run, key: str) -> list[float]:
    """Of each step its slowest rank's."""
    return [max(ranks) for ranks in zip(*(rank[key] for rank in run.ranks), strict=True)]
