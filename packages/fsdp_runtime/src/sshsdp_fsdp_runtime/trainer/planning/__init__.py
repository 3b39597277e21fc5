"""`sshsdp plan`: what would happen on any number of ranks, without starting one."""

from sshsdp_fsdp_runtime.trainer.planning.command import plan
from sshsdp_fsdp_runtime.trainer.planning.model_source import read_model
from sshsdp_fsdp_runtime.trainer.planning.request import PlanRequest, make_plan
from sshsdp_fsdp_runtime.trainer.planning.shape_file import parse_shapes, read_shape_file

__all__ = [
    "PlanRequest",
    "make_plan",
    "parse_shapes",
    "plan",
    "read_model",
    "read_shape_file",
]
