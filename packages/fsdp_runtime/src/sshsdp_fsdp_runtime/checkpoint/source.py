"""Which checkpoint the ranks are about to load: the same one on all of them."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.folder import checked_path
from sshsdp_fsdp_runtime.checkpoint.protocol import CheckpointTransport


class _Answer(TypedDict):
    path: str
    digest: str
    options: list[object]


def agree_on_source(
    transport: CheckpointTransport,
    path: str | os.PathLike[str] | None,
    identify: Callable[[Path], bytes],
    options: Sequence[object] = (),
) -> Path:
    """Refuse to load different checkpoints on different ranks. Collective.

    Copies of one checkpoint, on a disk of each node for instance, are the same one.

    Args:
        transport: connects the ranks.
        path: this rank's; None is an error that says what it means.
        identify: local; bytes that are the same for the same checkpoint, and for no other one.
        options: the caller's other arguments, as JSON values; also the same on all ranks.

    Returns:
        The path.

    Raises:
        CheckpointError: on every rank the same.
    """

    def look() -> _Answer:
        if path is None:
            raise CheckpointError(
                "expected a checkpoint, got None: there is none yet, if newest_checkpoint() said "
                "so; load only where it found one"
            )
        found = checked_path(path)
        digest = hashlib.sha256(identify(found)).hexdigest()
        return {"path": str(found), "digest": digest, "options": list(options)}

    answers = agree(transport, look)
    first = answers[0]
    for rank, answer in enumerate(answers):
        if answer["digest"] != first["digest"]:
            raise CheckpointError(
                f"expected the same checkpoint on all ranks, got {first['path']} on rank 0 and "
                f"another one, {answer['path']}, on rank {rank}; choose it on one rank and tell "
                "the others"
            )
        if answer["options"] != first["options"]:
            raise CheckpointError(
                f"expected the same arguments on all ranks, got {first['options']} on rank 0 and "
                f"{answer['options']} on rank {rank}; load the same everywhere"
            )
    return Path(answers[transport.rank]["path"])
