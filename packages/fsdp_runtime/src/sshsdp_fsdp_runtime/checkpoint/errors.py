"""Errors of the checkpoint floor; every rank of a failed call raises the same one."""

from torch.distributed.checkpoint.api import CheckpointException


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the text says what to do."""


class IncompleteCheckpointError(CheckpointError):
    """The folder is not a finished checkpoint: its save was interrupted, or files are missing."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another model; nothing was written into this one."""


def reason(error: BaseException) -> str:
    """Type and text of an error; of those that torch gathered, without their tracebacks."""
    if isinstance(error, CheckpointException):
        return "; ".join(
            f"rank {rank}: {reason(failure[0])}" for rank, failure in sorted(error.failures.items())
        )
    return f"{type(error).__name__}: {error}"
