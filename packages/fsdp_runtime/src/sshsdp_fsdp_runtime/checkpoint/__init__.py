"""Checkpoints in the format of torch.distributed.checkpoint, for any world size and degrees.

A checkpoint is a folder with the files of torch and a ``manifest.json``. Its tensors have logical
names and shapes, so that ``torch.distributed.checkpoint`` alone reads them in a plain program.
"""

from .boxes import Box, boxes
from .errors import CheckpointError, CheckpointMismatchError, IncompleteCheckpointError
from .folder import newest_checkpoint
from .fragment_tensor import FragmentTensor
from .load import load_checkpoint
from .protocol import Checkpointable, CheckpointEntry, CheckpointTransport
from .save import save_checkpoint

__all__ = [
    "Box",
    "CheckpointEntry",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointTransport",
    "Checkpointable",
    "FragmentTensor",
    "IncompleteCheckpointError",
    "boxes",
    "load_checkpoint",
    "newest_checkpoint",
    "save_checkpoint",
]
