"""Checkpoints in the format of torch.distributed.checkpoint, for any world size and degrees.

A checkpoint is a folder with the files of torch and a ``manifest.json``. Its tensors have logical
names and shapes, so that ``torch.distributed.checkpoint`` alone reads them in a plain program.
"""

from sshsdp_fsdp_runtime.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatchError,
    IncompleteCheckpointError,
)
from sshsdp_fsdp_runtime.checkpoint.folder import is_checkpoint, newest_checkpoint
from sshsdp_fsdp_runtime.checkpoint.from_torch import load_torch_checkpoint
from sshsdp_fsdp_runtime.checkpoint.load import load_checkpoint
from sshsdp_fsdp_runtime.checkpoint.manifest import Manifest
from sshsdp_fsdp_runtime.checkpoint.pending import PendingSave
from sshsdp_fsdp_runtime.checkpoint.protocol import Checkpointable, CheckpointTransport
from sshsdp_fsdp_runtime.checkpoint.safetensors_model import export_safetensors, load_safetensors
from sshsdp_fsdp_runtime.checkpoint.save import save_checkpoint

__all__ = [
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointTransport",
    "Checkpointable",
    "IncompleteCheckpointError",
    "Manifest",
    "PendingSave",
    "export_safetensors",
    "is_checkpoint",
    "load_checkpoint",
    "load_safetensors",
    "load_torch_checkpoint",
    "newest_checkpoint",
    "save_checkpoint",
]
