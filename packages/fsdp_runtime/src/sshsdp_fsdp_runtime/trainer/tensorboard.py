"""TensorBoard: the reports as event files."""

from pathlib import Path
from typing import Any

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.reports import StepReport, ValidationReport


class TensorBoard:
    """Writes events into `folder`."""

    def __init__(self, folder: Path) -> None:
        # Imported late: torch's module needs the extra.
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def step(self, report: StepReport) -> None:
        """The scalars of a step, under the names that the metrics file has."""
        for name in ("loss", "lr", "grad_norm", "tokens_per_s", "pss_bytes"):
            self._add(f"train/{name}", getattr(report, name), report.step)

    def validation(self, report: ValidationReport) -> None:
        """The validation loss."""
        self._add("validation/loss", report.val_loss, report.step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()

    def _add(self, tag: str, value: float, step: int) -> None:
        self._writer.add_scalar(tag, value, step)


def require_tensorboard() -> None:
    """Refuse early, before ranks start.

    Raises:
        InputError: when the package is not installed.
    """
    try:
        import tensorboard  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise InputError(
            "expected the package tensorboard for report.tensorboard, got none; do:"
            " pip install 'sshsdp-fsdp-runtime[tensorboard]'"
        ) from error
