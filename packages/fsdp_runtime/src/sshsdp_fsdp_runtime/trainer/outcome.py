"""Outcome: how a run ended, and the last line that says so."""

import math
from dataclasses import dataclass
from pathlib import Path

from sshsdp_fsdp_runtime.trainer.progress import GIB
from sshsdp_fsdp_runtime.trainer.stop import exit_status


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished or interrupted run.

    Attributes:
        steps: done in total.
        val_loss: nats per token.
        tokens_per_s: training throughput over all ranks.
        peak_pss_bytes: sum over ranks of each rank's peak proportional set size. Memory that ranks
            share counts once; the peaks need not coincide, so this is an upper bound.
        run: the run folder.
        signum: of the signal that ended it early, or 0.
    """

    steps: int
    val_loss: float
    tokens_per_s: float
    peak_pss_bytes: int
    run: Path
    signum: int = 0

    @property
    def status(self) -> int:
        """Exit status: 0, 1 for a run that diverged, or 128 + the signal's number."""
        return exit_status(self.signum) if self.signum else int(self._diverged)

    @property
    def _diverged(self) -> bool:
        return not math.isfinite(self.val_loss)

    def last_line(self) -> str:
        """The last line of the run's output."""
        head = "interrupted:" if self.signum else "diverged:" if self._diverged else "done:"
        line = (
            f"{head} steps={self.steps} val_loss={self.val_loss:.4f}"
            f" tokens_per_s={self.tokens_per_s:.0f}"
            f" peak_memory_gib={self.peak_pss_bytes / GIB:.3f} run={self.run}"
        )
        if self.signum:
            return f"{line} (continue with: sshsdp train --resume {self.run})"
        if self._diverged:
            return f"{line} (the model is of no use: try a lower learning rate)"
        return line
