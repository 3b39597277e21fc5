"""A plan as a picture: data trees on the left, shard chains on the right (paper, Figure 4)."""

from sshsdp_fsdp_runtime.trainer.planning.picture.figure import write_picture

__all__ = ["write_picture"]
