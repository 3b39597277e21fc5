"""Errors of the checkpoint floor; every rank of a failed call raises the same one."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the text says what to do."""


class IncompleteCheckpointError(CheckpointError):
    """The folder is not a finished checkpoint: its save was interrupted, or files are missing."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another model; nothing was written into this one."""
