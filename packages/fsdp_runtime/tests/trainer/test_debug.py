"""Aids for finding faults: traces, waits, poison, and what was not finite."""

import json
import time

import pytest
from packages.fsdp_runtime.tests.trainer.commands import small_run, steps_of

from sshsdp_fsdp_runtime.trainer import main
from sshsdp_fsdp_runtime.trainer.cli import train
from sshsdp_fsdp_runtime.trainer.metrics import read_metrics
from sshsdp_fsdp_runtime.trainer.session import ShardedSession

LATE = 0.15  # seconds


class LateSession(ShardedSession):
    """Rank 1 takes long before it clips its gradients."""

    def clip_grad_norm(self, largest):
        if self._transport.rank == 1:
            time.sleep(LATE)
        return super().clip_grad_norm(largest)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("debug")


@pytest.fixture(scope="module")
def plain(folder):
    assert main([*small_run(folder), "--ranks", "2", "--name", "plain"]) == 0
    return folder / "runs" / "plain"


def rows(run):
    return [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "step"]


def labels(path, rank):
    """Labels of ours in a process of a trace."""
    events = json.loads(path.read_text())["traceEvents"]
    [pid] = {
        event["pid"]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"] == f"rank {rank}"
    }
    return [e["name"] for e in events if e["pid"] == pid and e["name"].startswith("sshsdp::")]


def test_traced_steps_are_in_the_run_folder_with_every_phase_of_every_rank(folder, plain):
    options = ["--ranks", "2", "--name", "traced", "--trace", "3:2"]
    assert main([*small_run(folder), *options]) == 0
    traced = folder / "runs" / "traced"
    assert steps_of(traced) == steps_of(plain)  # nothing changes
    names = sorted(path.name for path in (traced / "trace").iterdir())
    assert names == ["all.json", "rank-0.json", "rank-1.json"]
    for rank in range(2):
        own = labels(traced / "trace" / f"rank-{rank}.json", rank)
        assert labels(traced / "trace" / "all.json", rank) == own
        assert own.count("sshsdp::G") == 2  # steps
        for name in (
            "forward layers.0",
            "gather layers.0",
            "reduce layers.0",
            "collect votes",
            "finalize gradients",
            "gradient norm",
            "adamw adamw",
            "muon orthogonalize",
            "idle",
            "checkpoint write",
        ):
            assert f"sshsdp::{name}" in own, name


def test_a_late_rank_is_named_step_by_step_and_in_the_table(folder, capfd):
    options = ["--ranks", "2", "--name", "late", "--stragglers"]
    assert train([*small_run(folder)[1:], *options], LateSession) == 0
    output = capfd.readouterr().out
    assert "seconds per step:" in output
    assert "most waited for: rank 1" in output
    late = rows(folder / "runs" / "late")
    assert sum(row["last_rank"] for row in late) > len(late) / 2
    assert sum(row["max_wait_s"] for row in late) > LATE


def test_poisoned_buffers_change_nothing_where_nothing_is_read_after_its_release(folder, plain):
    assert main([*small_run(folder), "--ranks", "2", "--name", "poisoned", "--poison"]) == 0
    expected = [row["loss"] for row in rows(plain)]
    losses = [row["loss"] for row in rows(folder / "runs" / "poisoned")]
    assert losses == pytest.approx(expected, abs=2e-5)


@pytest.mark.usefixtures("pictures")  # of losses that are no numbers
def test_a_skipped_step_says_what_was_not_finite(folder, capfd):
    wild = ["--optimizer.name", "adamw", "--optimizer.lr", "1e38", "--optimizer.warmup-steps", "0"]
    assert main([*small_run(folder), *wild, "--ranks", "2", "--name", "wild"]) == 1
    output = capfd.readouterr().out
    assert "SKIPPED: gradients not finite" in output
    assert "not finite:\n  loss of rank 0\n  loss of rank 1\n  weight embed.weight: " in output
    assert "no sample: expected finite outputs of the model" in output
    assert output.splitlines()[-1].startswith("diverged: steps=6 val_loss=nan ")
    skipped = [row for row in rows(folder / "runs" / "wild") if row["skipped"]]
    assert skipped[0]["nonfinite"][:2] == ["loss of rank 0", "loss of rank 1"]
    assert any(text.startswith("gradient embed.weight: ") for text in skipped[0]["nonfinite"])


def test_a_resumed_run_says_that_a_step_to_trace_is_over(folder, plain, capfd):
    assert main(["train", "--resume", str(plain), "--steps", "7", "--trace", "2"]) == 0
    assert "trace: step 2 was done before; nothing is recorded" in capfd.readouterr().out
    assert not (plain / "trace").exists()
