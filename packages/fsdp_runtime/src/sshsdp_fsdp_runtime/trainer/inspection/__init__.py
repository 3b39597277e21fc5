"""What is in checkpoints and runs: the commands `sshsdp inspect` and `sshsdp compare`."""

from sshsdp_fsdp_runtime.trainer.inspection.compare import compare
from sshsdp_fsdp_runtime.trainer.inspection.inspect import inspect

__all__ = ["compare", "inspect"]
