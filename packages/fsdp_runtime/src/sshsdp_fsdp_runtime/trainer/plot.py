"""Plot: a picture of a run's losses and throughput."""

from pathlib import Path

from sshsdp_fsdp_runtime.trainer.metrics import read_metrics


class NoPlotError(RuntimeError):
    """The picture can't be drawn; the text says why."""


def write_plot(metrics: Path, picture: Path) -> None:
    """Draw the metrics file as a PNG: loss above, tokens per second below.

    Raises:
        NoPlotError: when matplotlib (extra `plots`) is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlotError(
            "no picture: matplotlib is not installed; do: pip install 'sshsdp-fsdp-runtime[plots]'"
        ) from error
    rows = list(read_metrics(metrics))
    steps = [row for row in rows if row["kind"] == "step" and row["loss"] is not None]
    checks = [row for row in rows if row["kind"] == "validation" and row["val_loss"] is not None]
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, speed = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    at = [row["step"] for row in steps]
    loss.plot(at, [row["loss"] for row in steps], linewidth=0.8, label="training")
    loss.plot(
        [row["step"] for row in checks],
        [row["val_loss"] for row in checks],
        marker="o",
        label="validation",
    )
    loss.set_ylabel("loss, nats per token")
    loss.legend()
    speed.plot(at, [row["tokens_per_s"] for row in steps], linewidth=0.8)
    speed.set_ylabel("tokens per second")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("step")
    for axes in (loss, speed):
        axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)
