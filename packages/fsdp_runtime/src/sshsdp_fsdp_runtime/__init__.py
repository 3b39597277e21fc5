"""Sharded data parallelism: parameters are computed with in one shape and updated in another."""

from sshsdp_fsdp_runtime.plan import (
    Cast,
    Forecast,
    ModelSpec,
    Options,
    Pack,
    ParameterSpec,
    Plan,
    PlanError,
    RestingTerm,
    Sharding,
    TrafficRow,
    Update,
    build_plan,
    is_matrix,
    resting_terms,
    step_traffic,
)
from sshsdp_fsdp_runtime.runtime import ShardedGradient, ShardedModule, fully_shard

__all__ = [
    "Cast",
    "Forecast",
    "ModelSpec",
    "Options",
    "Pack",
    "ParameterSpec",
    "Plan",
    "PlanError",
    "RestingTerm",
    "ShardedGradient",
    "ShardedModule",
    "Sharding",
    "TrafficRow",
    "Update",
    "build_plan",
    "fully_shard",
    "is_matrix",
    "resting_terms",
    "step_traffic",
]
