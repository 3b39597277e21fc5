"""The writing of a planned checkpoint: needs the folder only, no other rank."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.folder import commit, staging_folder
from sshsdp_fsdp_runtime.checkpoint.integrity import FileFacts
from sshsdp_fsdp_runtime.checkpoint.manifest import METADATA, Manifest
from sshsdp_fsdp_runtime.checkpoint.report import Report, collect


class Planning:
    """Which rank writes what: torch's planner over our messages."""

    def __init__(self, path: Path, state: dict[str, Any], rank: int) -> None:
        self._rank = rank
        self._writer = FileSystemWriter(staging_folder(path))
        self._planner = DefaultSavePlanner()
        self._planner.set_up_planner(state, is_coordinator=rank == 0)

    def local(self) -> SavePlan:
        """This rank's plan, to be told to all."""
        return self._planner.create_local_plan()

    def finish(self, plans: list[SavePlan]) -> "LocalWrite":
        """Check all ranks' plans together; the same on every rank.

        Raises:
            ValueError: an element would be saved twice, or not at all.
        """
        together, metadata = self._planner.create_global_plan(plans)
        own = self._writer.prepare_global_plan(together)[self._rank]
        return LocalWrite(self._planner.finish_plan(own), self._planner, self._writer, metadata)


@dataclass(frozen=True, slots=True)
class LocalWrite:
    """A rank's own files.

    Attributes:
        plan: what goes into them.
        planner: holds the values.
        writer: into the staging folder.
        metadata: of the whole checkpoint.
    """

    plan: SavePlan
    planner: DefaultSavePlanner
    writer: FileSystemWriter
    metadata: Metadata

    def run(self) -> Report:
        """Write them, forced to the disk."""
        if not self.plan.items:
            return Report()
        results = self.writer.write_data(self.plan, self.planner).wait()
        folder = Path(self.writer.checkpoint_id)
        names = sorted({result.storage_data.relative_path for result in results})
        return Report(results, {name: FileFacts.of(folder / name) for name in names})


@dataclass(frozen=True, slots=True)
class Write:
    """One rank's part of a save, in two steps that the ranks take one after the other.

    Attributes:
        path: where the checkpoint appears.
        local: the rank's own files.
        manifest: without its files.
        rank: this rank.
        timeout: seconds that rank 0 waits while nothing grows.
    """

    path: Path
    local: LocalWrite
    manifest: Manifest
    rank: int
    timeout: float

    def write(self) -> None:
        """Write this rank's files and hand in a report, of success or of failure."""
        staging = staging_folder(self.path)
        try:
            report = self.local.run()
        except Exception as error:
            cause = _cause(error)
            failure = Report(error=f"{type(cause).__name__}: {cause}")
            # The folder may be gone, because another rank failed before.
            if staging.is_dir():
                with contextlib.suppress(OSError):  # a full disk may have no room for this either
                    failure.hand_in(staging, self.rank)
            if cause is error:
                raise
            raise cause from error
        report.hand_in(staging, self.rank)

    def commit(self, failed: Callable[[], bool]) -> None:
        """Rank 0 waits for all reports, writes what completes the folder, and lets it appear.

        Args:
            failed: whether some rank is known to be gone; see `collect`.
        """
        if self.rank:
            return
        staging = staging_folder(self.path)
        reports = collect(staging, self.manifest.world, self.timeout, failed)
        self.local.writer.finish(self.local.metadata, [report.results for report in reports])
        files = {name: facts for report in reports for name, facts in report.files.items()}
        files[METADATA] = FileFacts.of(staging / METADATA)
        stray = {file.name for file in staging.iterdir()} - set(files)
        if stray:
            raise CheckpointError(
                f"expected only this save's files in {staging}, got also {sorted(stray)}; is "
                "another program saving to the same path?"
            )
        replace(self.manifest, files=files).write(staging)
        commit(self.path)


def _cause(error: Exception) -> Exception:
    """The system's error behind one of torch's: its archives say nothing of a full disk."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError):
            return at
        at = at.__cause__ or at.__context__
    return error
