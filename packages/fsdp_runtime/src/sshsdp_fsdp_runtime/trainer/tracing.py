"""Tracing: records a window of steps, a file per rank and one of all."""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from sshsdp_fsdp_runtime.debug import merge_traces
from sshsdp_fsdp_runtime.trainer.runfolder import RunFolder
from sshsdp_fsdp_runtime.trainer.seat import Seat
from sshsdp_fsdp_runtime.trainer.session import Session
from sshsdp_fsdp_runtime.trainer.trace_window import TraceWindow


class Tracing:
    """Used around the steps of a run; does nothing without a window.

    Args:
        session: of this rank.
        window: the steps to record, with what lies between them.
        folder: of the run.
        seat: of this rank.
    """

    def __init__(
        self, session: Session, window: TraceWindow | None, folder: RunFolder, seat: Seat
    ) -> None:
        self._session, self._window, self._folder, self._seat = session, window, folder, seat
        self._recording = ExitStack()
        self._open = False

    def begin(self, step: int) -> None:
        """Step `step`, from 1, begins."""
        if self._window is not None and step == self._window.first:
            path = self._folder.trace(self._seat.rank)
            path.parent.mkdir(exist_ok=True)
            self._recording.enter_context(self._session.trace(path))
            self._open = True

    def end(self, step: int, *, last: bool) -> None:
        """Step `step` and what follows it are done. Collective.

        Args:
            step: from 1.
            last: there is no other step.
        """
        if not self._open or self._window is None or not (last or step == self._window.last):
            return
        self._recording.close()
        self._open = False
        self._session.exchange(b"")  # all files are there
        if self._seat.rank == 0:
            paths = [self._folder.trace(rank) for rank in range(self._seat.world)]
            merge_traces(paths, self._folder.trace(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A run that failed leaves no trace."""
        self._recording.__exit__(kind, error, trace)
