"""Saves that go on while training does."""

import threading
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary, ref

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.folder import discard_staging, staging_folder
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
        # Not kept alive: who drops a model after its last save gets its memory back.
        self._transport = ref(transport)
        self._errors: dict[int, Exception] = {}  # by step
        self._failure: Exception | None = None
        self._settled = write is None
        self._thread: threading.Thread | None = None
        if write is not None:
            name = f"save to {path}"
            self._thread = threading.Thread(target=self._run, args=(write,), name=name)
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
        if not self._settled:
            if self._thread is not None:
                self._thread.join()
            self._settle()
        if self._failure is not None:
            raise self._failure
        return self.path

    def _settle(self) -> None:
        self._settled = True
        transport = self._transport()
        if transport is None:  # the model is gone: every rank knows its own part only
            self._failure = next(iter(self._errors.values()), None)
            return
        if _in_flight.get(transport) is self:
            del _in_flight[transport]
        try:
            # Writing first: an error of the last step may follow from another rank's.
            for step in range(_STEPS):
                agree(transport, partial(self._check, step))
        except CheckpointError as error:
            self._failure = error
            if transport.rank == 0:
                # Once more, now that nobody writes: a rank may have put a file there meanwhile.
                discard_staging(self.path)

    def _check(self, step: int) -> None:
        if step in self._errors:
            raise self._errors[step]

    def _failed(self) -> bool:
        transport = self._transport()
        return transport is not None and transport.failed

    def _run(self, write: Write) -> None:
        actions: list[Callable[[], None]] = [write.write, partial(write.commit, self._failed)]
        for step, action in enumerate(actions):
            try:
                action()
            except Exception as error:
                # Without the folder, rank 0 has removed it: that follows from another rank's error.
                follows = not staging_folder(self.path).is_dir()
                self._errors[_STEPS - 1 if follows else step] = error
                break
        if self._errors and write.rank == 0:
            discard_staging(self.path)


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
