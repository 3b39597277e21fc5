"""Progress: the reports for a reader, live on a terminal and as plain lines elsewhere."""

import math
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from sshsdp_fsdp_runtime.trainer.console import outliving
from sshsdp_fsdp_runtime.trainer.reports import Listener, StepReport, ValidationReport

GIB = 1 << 30
_SMOOTHING = 0.9
_NOTABLE_WAIT = 0.2  # of a step
_SHOWN = 8  # tensors that are not finite


class Pace:
    """Seconds that remain, from the smoothed time of a step.

    Args:
        steps: that the run has in total.
        tokens_per_step: over all ranks.
    """

    def __init__(self, steps: int, tokens_per_step: int) -> None:
        self._steps, self._tokens_per_step = steps, tokens_per_step
        self._smoothed = math.nan

    def remaining(self, report: StepReport) -> float:
        """Seconds until the last step, judged by the steps seen so far."""
        took = self._tokens_per_step / report.tokens_per_s
        first = math.isnan(self._smoothed)
        self._smoothed = took if first else _SMOOTHING * self._smoothed + (1 - _SMOOTHING) * took
        return (self._steps - report.step) * self._smoothed


def format_seconds(seconds: float) -> str:
    """For example 1h02m, 4m07s or 12s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def format_step(report: StepReport, planned_bytes: int | None) -> str:
    """Loss, gradient norm, learning rate, throughput, memory beside the plan's buffers, waits."""
    planned = "" if planned_bytes is None else f" (planned buffers {planned_bytes / GIB:.3f})"
    skipped = "  SKIPPED: gradients not finite" if report.skipped else ""
    waits = ""
    if report.max_wait_s > _NOTABLE_WAIT * report.seconds:
        waits = f"  waits {report.max_wait_s:.2f} s for rank {report.last_rank}"
    return (
        f"loss {report.loss:.4f}  grad_norm {report.grad_norm:.3f}  lr {report.lr:.2e}"
        f"  tokens/s {report.tokens_per_s:,.0f}  memory {report.pss_bytes / GIB:.2f} GiB{planned}"
        f"{waits}{skipped}"
    )


def format_nonfinite(report: StepReport) -> str:
    """What was not finite in a skipped step, a line each, the first ones of many."""
    shown = report.nonfinite[:_SHOWN]
    more = len(report.nonfinite) - len(shown)
    return "\n".join([f"  {text}" for text in shown] + [f"  and {more} more"] * (more > 0))


class PlainProgress:
    """A line per `every` steps, per skipped step and per evaluation.

    Args:
        output: where the lines go.
        pace: of the run.
        steps: in total.
        every: steps per line; the first and the last step always have one.
        planned_bytes: of the plan's buffers, over all ranks.
    """

    def __init__(
        self, output: TextIO, pace: Pace, *, steps: int, every: int, planned_bytes: int | None
    ) -> None:
        self._output, self._pace, self._steps = output, pace, steps
        self._every, self._planned = every, planned_bytes
        self._begun = False

    def step(self, report: StepReport) -> None:
        """A line, when one is due."""
        remaining = self._pace.remaining(report)
        due = report.step % self._every == 0 or report.step == self._steps
        if due or report.skipped or not self._begun:
            text = format_step(report, self._planned)
            self._write(report.step, f"{text}  eta {format_seconds(remaining)}")
        if report.nonfinite:
            self._write(report.step, f"not finite:\n{format_nonfinite(report)}")
        self._begun = True

    def validation(self, report: ValidationReport) -> None:
        """A line."""
        self._write(report.step, f"val_loss {report.val_loss:.4f}")

    def close(self) -> None:
        """Nothing to close."""

    def _write(self, step: int, text: str) -> None:
        width = len(str(self._steps))
        with outliving(self._output):
            print(f"step {step:>{width}}/{self._steps}  {text}", file=self._output, flush=True)


class LiveProgress:
    """A bar with the latest numbers under it; evaluations stay above it as lines."""

    def __init__(
        self, console: Console, pace: Pace, *, steps: int, planned_bytes: int | None
    ) -> None:
        self._pace, self._planned = pace, planned_bytes
        self._bar = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}")
        )
        self._task = self._bar.add_task("", total=steps)
        self._live = Live(self._bar, console=console)
        self._live.start()

    def step(self, report: StepReport) -> None:
        """Move the bar."""
        eta = f"eta {format_seconds(self._pace.remaining(report))}"
        with outliving(self._live.console.file):
            self._bar.update(self._task, completed=report.step, description=eta)
            # Two rows: the numbers alone are wider than many a terminal.
            self._live.update(Group(self._bar, Text(format_step(report, self._planned))))
            if report.nonfinite:
                text = f"step {report.step}  not finite:\n{format_nonfinite(report)}"
                self._live.console.print(text, highlight=False, markup=False)

    def validation(self, report: ValidationReport) -> None:
        """A line above the bar."""
        with outliving(self._live.console.file):
            self._live.console.print(
                f"step {report.step}  val_loss {report.val_loss:.4f}", highlight=False
            )

    def close(self) -> None:
        """Leave the bar as it is."""
        with outliving(self._live.console.file):
            self._live.stop()


def make_progress(
    output: TextIO, *, steps: int, tokens_per_step: int, every: int, planned_bytes: int | None
) -> Listener:
    """Live on a terminal, plain lines elsewhere."""
    pace = Pace(steps, tokens_per_step)
    if output.isatty():
        return LiveProgress(Console(file=output), pace, steps=steps, planned_bytes=planned_bytes)
    return PlainProgress(output, pace, steps=steps, every=every, planned_bytes=planned_bytes)
