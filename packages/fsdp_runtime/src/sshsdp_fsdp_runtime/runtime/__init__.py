"""Executes a plan: buffers, slots, gradients, hooks. It decides nothing about layout or order."""

from sshsdp_fsdp_runtime.runtime.average import ExponentialAverage
from sshsdp_fsdp_runtime.runtime.deferred_init import deferred_init
from sshsdp_fsdp_runtime.runtime.entry import CheckpointEntry
from sshsdp_fsdp_runtime.runtime.fragment_tensor import FragmentTensor
from sshsdp_fsdp_runtime.runtime.fully_shard import fully_shard
from sshsdp_fsdp_runtime.runtime.nonfinite import Nonfinite
from sshsdp_fsdp_runtime.runtime.sharded_gradient import ShardedGradient
from sshsdp_fsdp_runtime.runtime.sharded_module import ShardedModule

__all__ = [
    "CheckpointEntry",
    "ExponentialAverage",
    "FragmentTensor",
    "Nonfinite",
    "ShardedGradient",
    "ShardedModule",
    "deferred_init",
    "fully_shard",
]
