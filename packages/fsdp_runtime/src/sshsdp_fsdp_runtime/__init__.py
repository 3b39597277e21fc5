"""Sharded data parallelism: parameters are computed with in one shape and updated in another."""

from sshsdp_fsdp_runtime.plan import (
    Cast,
    Forecast,
    ModelSpec,
    Options,
    ParameterSpec,
    Plan,
    PlanError,
    Sharding,
    Update,
    build_plan,
    is_matrix,
)
from sshsdp_fsdp_runtime.runtime import ShardedGradient, ShardedModule, fully_shard

__all__ = [
    "Cast",
    "Forecast",
    "ModelSpec",
    "Options",
    "ParameterSpec",
    "Plan",
    "PlanError",
    "ShardedGradient",
    "ShardedModule",
    "Sharding",
    "Update",
    "build_plan",
    "fully_shard",
    "is_matrix",
]
