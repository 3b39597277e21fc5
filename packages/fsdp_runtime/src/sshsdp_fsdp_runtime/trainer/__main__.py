"""The command as a module: ``torchrun ... -m sshsdp_fsdp_runtime.trainer train ...``."""

from sshsdp_fsdp_runtime.trainer.cli import entry

entry()
