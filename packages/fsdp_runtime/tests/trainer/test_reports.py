"""Reports reach the reader, the metrics file, the picture and TensorBoard."""

import io
import json
import math
import resource
import sys

import pytest
from rich.console import Console

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.metrics import Metrics, read_metrics
from sshsdp_fsdp_runtime.trainer.outcome import Outcome
from sshsdp_fsdp_runtime.trainer.plot import NoPlotError, write_plot
from sshsdp_fsdp_runtime.trainer.progress import (
    LiveProgress,
    Pace,
    PlainProgress,
    format_seconds,
    make_progress,
)
from sshsdp_fsdp_runtime.trainer.reports import Audience, StepReport, ValidationReport
from sshsdp_fsdp_runtime.trainer.tensorboard import TensorBoard, require_tensorboard


def report(step, loss=2.5, skipped=False, nonfinite=(), max_wait_s=0.0):
    return StepReport(
        step=step,
        loss=loss,
        lr=0.001,
        grad_norm=math.nan if skipped else 1.25,
        tokens=step * 100,
        seconds=2.0,
        tokens_per_s=50.0,
        rss_bytes=1 << 30,
        pss_bytes=1 << 29,
        skipped=skipped,
        nonfinite=nonfinite,
        max_wait_s=max_wait_s,
        last_rank=1,
    )


def plain(every=10, planned=None):
    output = io.StringIO()
    return PlainProgress(
        output, Pace(40, 100), steps=40, every=every, planned_bytes=planned
    ), output


def test_a_plain_line_says_everything():
    progress, output = plain(planned=1 << 28)
    progress.step(report(10))
    assert output.getvalue() == (
        "step 10/40  loss 2.5000  grad_norm 1.250  lr 1.00e-03  tokens/s 50"
        "  memory 0.50 GiB (planned buffers 0.250)  eta 1m00s\n"
    )


def test_plain_lines_come_at_the_first_step_every_n_and_the_last():
    progress, output = plain(every=15)
    for step in range(1, 41):
        progress.step(report(step))
    progress.validation(ValidationReport(40, 1.5))
    lines = output.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/40", "15/40", "30/40", "40/40", "40/40"]
    assert lines[-1] == "step 40/40  val_loss 1.5000"


def test_a_skipped_step_always_has_a_line():
    progress, output = plain()
    progress.step(report(1))
    progress.step(report(2, skipped=True))
    assert output.getvalue().splitlines()[1].count("SKIPPED: gradients not finite") == 1


@pytest.mark.parametrize("live", [False, True])
def test_a_skipped_step_says_what_was_not_finite(live):
    found = tuple(f"gradient layers.{index}.weight: 3 NaN of 8" for index in range(11))
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    progress, output = plain() if not live else (None, console.file)
    progress = progress or LiveProgress(console, Pace(40, 100), steps=40, planned_bytes=None)
    progress.step(report(2, skipped=True, nonfinite=found))
    progress.step(report(3))
    progress.close()
    text = output.getvalue()
    assert text.count("not finite:") == 1
    assert "  gradient layers.7.weight: 3 NaN of 8" in text
    assert "layers.8" not in text
    assert "  and 3 more" in text


def test_a_line_names_the_rank_that_the_others_waited_for_long():
    progress, output = plain(every=1)
    progress.step(report(1, max_wait_s=0.3))  # of 2 seconds
    progress.step(report(2, max_wait_s=0.5))
    first, second = output.getvalue().splitlines()
    assert "waits" not in first
    assert "  waits 0.50 s for rank 1  eta" in second


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines():
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    progress = LiveProgress(console, Pace(40, 100), steps=40, planned_bytes=None)
    progress.step(report(20))
    progress.validation(ValidationReport(20, 1.5))
    progress.close()
    assert all(part in output.getvalue() for part in ("20/40", "eta 40s", "memory 0.50 GiB"))
    assert "val_loss 1.5000" in output.getvalue()
    options = {"steps": 4, "tokens_per_step": 8, "every": 1, "planned_bytes": None}
    assert isinstance(make_progress(io.StringIO(), **options), PlainProgress)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0s"), (59.6, "1m00s"), (247, "4m07s"), (3725, "1h02m")]
)
def test_seconds_for_a_reader(seconds, text):
    assert format_seconds(seconds) == text


def test_metrics_of_a_stopped_run_survive_when_they_can_not_be_written_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.step(report(1))
    metrics.close()
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Metrics(path, start=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


def test_a_metrics_row_per_step_and_evaluation(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    audience = Audience([metrics])
    audience.step(report(1))
    audience.step(report(2, loss=math.inf, skipped=True))
    audience.validation(ValidationReport(2, 1.5))
    audience.close()
    first, second, third = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first == {
        "kind": "step",
        "step": 1,
        "loss": 2.5,
        "lr": 0.001,
        "grad_norm": 1.25,
        "tokens": 100,
        "seconds": 2.0,
        "tokens_per_s": 50.0,
        "rss_bytes": 1 << 30,
        "pss_bytes": 1 << 29,
        "skipped": False,
        "nonfinite": [],
        "max_wait_s": 0.0,
        "last_rank": 1,
    }
    assert second["loss"] is None
    assert second["grad_norm"] is None
    assert third == {"kind": "validation", "step": 2, "val_loss": 1.5}


def test_a_resumed_run_drops_what_its_checkpoint_does_not_know(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    for step in (1, 2, 3):
        metrics.step(report(step))
    metrics.close()
    with path.open("a") as file:
        file.write('{"kind": "step", "st')
    resumed = Metrics(path, start=2)
    resumed.step(report(3, loss=9.0))
    resumed.close()
    assert [(row["step"], row["loss"]) for row in read_metrics(path)] == [
        (1, 2.5),
        (2, 2.5),
        (3, 9.0),
    ]


def written_metrics(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(1, 20):
        metrics.step(report(step, loss=math.nan if step == 3 else 1 / step))
    metrics.validation(ValidationReport(19, 0.5))
    metrics.close()
    return tmp_path / "metrics.jsonl"


def test_the_picture_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    write_plot(written_metrics(tmp_path), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NoPlotError, match=r"pip install 'sshsdp-fsdp-runtime\[plots\]'"):
        write_plot(written_metrics(tmp_path), tmp_path / "plot.png")


def test_tensorboard_gets_the_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board.step(report(4))
    board.validation(ValidationReport(4, 1.5))
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("train/loss")[0].value == 2.5
    assert events.Scalars("validation/loss")[0].step == 4


def test_without_tensorboard_the_flag_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"install 'sshsdp-fsdp-runtime\[tensorboard\]'"):
        require_tensorboard()


def test_the_last_line_of_a_finished_run(tmp_path):
    outcome = Outcome(
        steps=1000, val_loss=1.23456, tokens_per_s=9876.5, peak_pss_bytes=1 << 29, run=tmp_path
    )
    assert outcome.last_line() == (
        f"done: steps=1000 val_loss=1.2346 tokens_per_s=9876 peak_memory_gib=0.500 run={tmp_path}"
    )
    assert outcome.status == 0


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_run_that_ends_without_a_finite_loss_is_not_called_done(tmp_path, loss):
    outcome = Outcome(
        steps=9, val_loss=loss, tokens_per_s=1.0, peak_pss_bytes=0, run=tmp_path, signum=0
    )
    assert outcome.last_line().startswith(f"diverged: steps=9 val_loss={loss} ")
    assert outcome.last_line().endswith("(the model is of no use: try a lower learning rate)")
    assert outcome.status == 1


def test_the_last_line_of_an_interrupted_run(tmp_path):
    outcome = Outcome(
        steps=5, val_loss=3.0, tokens_per_s=1.0, peak_pss_bytes=0, run=tmp_path, signum=15
    )
    assert outcome.last_line().startswith("interrupted: steps=5 ")
    assert outcome.last_line().endswith(f"(continue with: sshsdp train --resume {tmp_path})")
    assert outcome.status == 143
