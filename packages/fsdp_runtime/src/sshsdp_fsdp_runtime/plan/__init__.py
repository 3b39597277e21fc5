"""Everything that is decided before anything runs: rules, claims, groups, atoms, layouts, bytes."""

from sshsdp_fsdp_runtime.plan.atom import AtomPlan, WeightForm
from sshsdp_fsdp_runtime.plan.claims import Claim
from sshsdp_fsdp_runtime.plan.forecast import Forecast, ForecastRow
from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec, ParameterSpec
from sshsdp_fsdp_runtime.plan.options import Options
from sshsdp_fsdp_runtime.plan.plan import Plan, build_plan
from sshsdp_fsdp_runtime.plan.rules import Cast, PlanError, Sharding, Update, is_matrix

__all__ = [
    "AtomPlan",
    "Cast",
    "Claim",
    "Forecast",
    "ForecastRow",
    "GroupPlan",
    "ModelSpec",
    "Options",
    "ParameterSpec",
    "Plan",
    "PlanError",
    "Sharding",
    "Update",
    "WeightForm",
    "build_plan",
    "is_matrix",
]
