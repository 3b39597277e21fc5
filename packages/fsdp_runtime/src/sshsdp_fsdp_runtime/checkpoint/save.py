"""Writes a checkpoint: each rank its own elements, and the folder appears whole or not at all."""

import os
import pickle
import time
from collections.abc import Mapping
from pathlib import Path

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.contents import Contents
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.folder import (
    checked_path,
    discard_staging,
    open_staging,
    staging_folder,
)
from sshsdp_fsdp_runtime.checkpoint.manifest import Manifest
from sshsdp_fsdp_runtime.checkpoint.messages import exchange_all
from sshsdp_fsdp_runtime.checkpoint.pending import PendingSave, finish_pending
from sshsdp_fsdp_runtime.checkpoint.protocol import Checkpointable, check_sharded
from sshsdp_fsdp_runtime.checkpoint.state import snapshot
from sshsdp_fsdp_runtime.checkpoint.write import Planning, Write
from sshsdp_updates import labelled


def save_checkpoint(
    path: str | os.PathLike[str],
    model: Checkpointable,
    extra: Mapping[str, object],
    *,
    asynchronous: bool = False,
) -> PendingSave:
    """Save a model, its optimizer and the caller's values. Collective.

    Every rank writes the elements it owns into a hidden sibling folder that all ranks reach; after
    all have finished, it is renamed to `path`. Interrupted before that, nothing is at `path`. No
    tensor bytes move between ranks.

    Args:
        path: the checkpoint's folder, the same on all ranks; nothing may be there yet.
        model: what to save.
        extra: JSON values and tensors, equal on all ranks, which compare checksums of them.
            ``extra["step"]``, an int, orders the checkpoints of a folder. ``extra["per_rank"]``
            may differ between ranks: each rank's is kept for the rank of the same number.
        asynchronous: return as soon as this rank has a copy, in memory, of the elements that it
            saves; they are written while training goes on. A save that is begun before waits for
            the one in flight.

    Returns:
        The save; its ``wait()`` returns when the checkpoint is there. It is when this function
        returns, unless `asynchronous`.

    Raises:
        TypeError: a model that is not sharded.
        CheckpointError: on every rank the same; nothing is at `path` then. Also when the save that
            was in flight has failed.
    """
    check_sharded(model)
    finish_pending(model.transport)
    steps = _Save(path, model, extra)
    transport = model.transport
    with labelled("sshsdp::checkpoint collect"):
        answers = agree(transport, steps.collect)
    steps.contents.compare(answers)
    try:
        with labelled("sshsdp::checkpoint plan"):
            agree(transport, steps.open)
            agree(transport, lambda: steps.plan(copy=asynchronous))
            agree(transport, steps.finish_plan)
        if asynchronous:
            return PendingSave(steps.path, transport, steps.write)
        with labelled("sshsdp::checkpoint write"):
            agree(transport, steps.write.write)
        with labelled("sshsdp::checkpoint commit"):
            agree(transport, lambda: steps.write.commit(lambda: transport.failed))
    except CheckpointError:
        steps.discard()
        raise
    return PendingSave(steps.path, transport, None)


class _Save:
    """The steps of one rank; every step is followed by an agreement of all ranks."""

    path: Path
    contents: Contents
    write: Write

    def __init__(
        self, path: str | os.PathLike[str], model: Checkpointable, extra: Mapping[str, object]
    ) -> None:
        self._given = path
        self._model = model
        self._extra = extra
        self._rank = model.transport.rank

    def collect(self) -> dict[str, object]:
        """Collect what to write; the answer is what ranks compare."""
        self.path = checked_path(self._given)
        if not self.path.name:
            raise CheckpointError(
                f"expected the path of a new folder, got {str(self.path)!r}, which has no name; "
                "name one in it"
            )
        self._staging = staging_folder(self.path)
        self.contents = Contents(self._model, self._extra)
        return self.contents.answer()

    def open(self) -> None:
        """Rank 0 makes the folder."""
        if self._rank == 0:
            open_staging(self.path)

    def plan(self, *, copy: bool) -> None:
        """See the folder, and plan this rank's part, of a copy of the state if asked."""
        if not self._staging.is_dir():
            raise CheckpointError(
                f"expected a file system that all ranks share, got none of rank 0's "
                f"{self._staging}; choose a path that every rank reaches"
            )
        state = snapshot(self.contents.state) if copy else self.contents.state
        self._planning = Planning(self.path, state, self._rank)
        self._local = self._planning.local()

    def finish_plan(self) -> None:
        """Hear all plans. Collective."""
        transport, contents = self._model.transport, self.contents
        plans = [pickle.loads(p) for p in exchange_all(transport, pickle.dumps(self._local))]
        self.write = Write(
            path=self.path,
            local=self._planning.finish(plans),
            manifest=Manifest(
                world=transport.world,
                step=contents.step,
                saved_at=time.time(),
                signature=contents.signature,
                scalars=contents.scalars,
                extra=contents.shared,
                per_rank=contents.per_rank,
                layout=self._model.checkpoint_layout(),
            ),
            rank=self._rank,
            timeout=transport.timeout,
        )

    def discard(self) -> None:
        """Rank 0 removes what was staged."""
        if self._rank == 0:
            discard_staging(self.path)
