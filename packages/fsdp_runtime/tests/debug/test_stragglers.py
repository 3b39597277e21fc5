"""Who is waited for, as the report of step times says it."""

import time

import torch
from testing.ranks import run_ranks
from torch import nn

from sshsdp_fsdp_runtime import fully_shard
from sshsdp_fsdp_runtime.debug import RankTimes, StragglerReport, StragglerWatch, WaitPhase
from sshsdp_zerosm import Topology, connect

LATE = 0.1  # seconds; added to the work of one rank
STEPS = 4


def train(rank, late, topology):
    """Steps of which rank `late` does everything slowly; the report, and waits of its steps."""
    with connect(rank.rank, rank.world, rank.store, timeout=60, topology=topology) as transport:
        torch.manual_seed(0)
        model = fully_shard(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 1)), transport=transport)
        transport.barrier()
        if rank.rank != late:
            time.sleep(LATE)  # before the watch begins: no wait of these steps
        transport.barrier()
        watch = StragglerWatch(transport)
        waits = []
        for _ in range(STEPS):
            loss = model(torch.ones(2, 5)).sum()
            if rank.rank == late:
                time.sleep(LATE)
            loss.backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
            waits.append(watch.step())
        report = watch.report()
        model.close()
        return report, waits


def check(topology, world, late):
    results = run_ranks(train, world, late, topology, timeout=120)
    reports = [report for report, _ in results]
    assert all(report == reports[0] for report in reports)  # the same on every rank
    report = reports[0]
    assert report.last == late
    assert f"most waited for: rank {late}" in report.describe()
    for times, (_, waits) in zip(report.ranks, results, strict=True):
        assert times.steps == STEPS
        assert abs(sum(waits) - times.waited_seconds) < 1e-6  # phases add up to what steps waited
        assert abs(sum(times.waited_for.values()) - times.waited_seconds) < 1e-6
        assert times.waited_seconds <= times.seconds
        assert times.longest_wait == max(waits)
        assert waits[times.longest_step - 1] == max(waits)
    waited = [times.waited_seconds for times in report.ranks]
    assert waited.index(min(waited)) == late
    worked = [times.worked for times in report.ranks]
    assert worked.index(max(worked)) == late


def test_a_rank_that_is_late_in_every_step_is_named():
    check(None, 3, 1)


def test_a_rank_of_another_node_is_named():
    check(Topology(2, 1), 2, 0)


def test_time_between_steps_can_be_left_out():
    with connect(0, 1) as transport:
        watch = StragglerWatch(transport)
        time.sleep(10 * LATE)
        watch.begin()
        watch.step()
        [times] = watch.report().ranks
    assert times.seconds < 10 * LATE
    assert (times.steps, times.waited_seconds, times.longest_step) == (1, 0.0, 0)


def test_the_table_has_seconds_per_step_and_only_phases_with_waits():
    times = [
        RankTimes(0, 2, 4.0, {WaitPhase.WEIGHTS: 1.0, WaitPhase.QUIET: 0.0}, {1: 1.0}, 0.75, 2),
        RankTimes(1, 2, 4.0, {}, {}, 0.0, 0),
    ]
    report = StragglerReport(tuple(times))
    assert report.waited_for == (0.0, 1.0)
    assert report.describe().splitlines() == [
        "seconds per step:",
        "rank   step  worked  waited  weights  waited for    longest wait",
        "   0  2.000   1.500   0.500    0.500       0.000  0.750 (step 2)",
        "   1  2.000   2.000   0.000    0.000       0.500",
        "most waited for: rank 1",
    ]
    alone = StragglerReport((RankTimes(0, 0, 0.0, {}, {}, 0.0, 0),))
    assert alone.last is None
    assert alone.describe().splitlines()[-1] == "nobody waited"
