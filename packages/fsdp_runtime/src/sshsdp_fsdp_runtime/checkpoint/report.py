"""What a rank has written, told to rank 0 through the folder itself.

Ranks that save while training goes on can't use the transport, which is busy; the folder is the
one thing that all of them reach.
"""

import os
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.checkpoint.storage import WriteResult

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.integrity import FileFacts

_PREFIX = ".report-"
_PAUSE = 0.02  # seconds
_AFTER_FAILURE = 3.0  # seconds


@dataclass(frozen=True, slots=True)
class Report:
    """One rank's account.

    Attributes:
        results: of torch's writer: where in which file each item is.
        files: name -> facts of the files that the rank wrote.
        error: why there are none; None for success.
    """

    results: list[WriteResult] = field(default_factory=list)
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    error: str | None = None

    def hand_in(self, folder: Path, rank: int) -> None:
        """Let it appear whole in `folder`; where there is no room for it, empty."""
        file = _file(folder, rank)
        draft = file.with_name(f"{file.name}.draft")
        try:
            draft.write_bytes(pickle.dumps(self))
        except OSError:
            os.truncate(draft, 0)
            os.rename(draft, file)
            raise
        os.rename(draft, file)

    @classmethod
    def read(cls, folder: Path, rank: int) -> "Report":
        """The one that `rank` has handed in."""
        content = _file(folder, rank).read_bytes()
        if not content:
            return cls(error="it can't write to the folder, not even why")
        report: Report = pickle.loads(content)
        return report


def collect(folder: Path, world: int, timeout: float, failed: Callable[[], bool]) -> list[Report]:
    """Every rank's report, in rank order, and their files removed.

    Args:
        folder: where they are handed in.
        world: number of ranks.
        timeout: seconds that may pass without a file of the folder growing.
        failed: whether some rank is known to be gone. Then, few such seconds do: whoever is there
            finishes its part, and this process may be about to end.

    Raises:
        CheckpointError: a rank failed, or did not report in time.
    """
    missing = set(range(world))
    size, changed = -1, time.monotonic()
    reports: dict[int, Report] = {}
    while missing:
        for rank in sorted(missing):
            if _file(folder, rank).exists():
                report = reports[rank] = Report.read(folder, rank)
                missing.remove(rank)
                if report.error is not None:
                    raise CheckpointError(f"rank {rank}: {report.error}")
        now = time.monotonic()
        found = _size(folder)
        if found != size:
            size, changed = found, now
        patience = min(timeout, _AFTER_FAILURE) if failed() else timeout
        if missing and now - changed > patience:
            raise CheckpointError(
                f"expected all ranks to write their part, got nothing new from ranks "
                f"{sorted(missing)} for {patience:g} s; the previous checkpoint is as it was"
            )
        if missing:
            time.sleep(_PAUSE)
    for rank in range(world):
        _file(folder, rank).unlink()
    return [reports[rank] for rank in range(world)]


def _file(folder: Path, rank: int) -> Path:
    return folder / f"{_PREFIX}{rank}"


def _size(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder):
        try:
            total += 1 + entry.stat().st_size
        except FileNotFoundError:  # a draft that was renamed meanwhile
            continue
    return total
