"""Saves that go on while training does."""

import threading
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.protocol import CheckpointTransport
from sshsdp_fsdp_runtime.checkpoint.write import Write

_STEPS = 2  # write, commit
_in_flight: MutableMapping[CheckpointTransport, "PendingSave"] = WeakKeyDictionary()


class PendingSave:
    """A save that was begun; `save_checkpoint` returns it.

    A process that ends normally finishes its save first.

    Attributes:
        path: where the checkpoint is once the save is complete.
    """

    def __init__(self, path: Path, transport: CheckpointTransport, write: Write | None) -> None:
        """Start writing in a thread; None: everything is written already."""
        self.path = path
        self._transport = transport
        self._write = write
        self._errors: dict[int, Exception] = {}  # by step
        self._failure: CheckpointError | None = None
        self._thread: threading.Thread | None = None
        if write is not None:
            self._thread = threading.Thread(target=self._run, name=f"save to {path}")
            _in_flight[transport] = self
            self._thread.start()

    def done(self) -> bool:
        """Whether this rank has nothing left to do. Not collective; says nothing of success."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Path:
        """Return when the checkpoint is complete at `path`. Collective the first time.

        Raises:
            CheckpointError: on every rank the same, again at every call; nothing is at `path`.
        """
        if _in_flight.get(self._transport) is self:
            del _in_flight[self._transport]
            if self._thread is not None:
                self._thread.join()
            try:
                # Writing first: rank 0's error of committing only follows from another rank's.
                for step in range(_STEPS):
                    agree(self._transport, partial(self._check, step))
            except CheckpointError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure
        return self.path

    def _check(self, step: int) -> None:
        if step in self._errors:
            raise self._errors[step]

    def _run(self) -> None:
        write = self._write
        assert write is not None
        for step, action in enumerate((write.write, write.commit)):
            try:
                action()
            except Exception as error:
                self._errors[step] = error
                write.discard()
                break
        self._write = None  # the snapshot's memory


def finish_pending(transport: CheckpointTransport) -> None:
    """Wait for the save in flight, if there is one. Collective.

    Raises:
        CheckpointError: it failed; this is said once.
    """
    pending = _in_flight.get(transport)
    if pending is not None:
        try:
            pending.wait()
        except CheckpointError as error:
            raise type(error)(
                f"the save to {pending.path}, which went on in the background, failed: {error}"
            ) from error
