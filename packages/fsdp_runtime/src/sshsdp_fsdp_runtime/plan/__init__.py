"""Everything that is decided before anything runs: rules, claims, groups, atoms, layouts, bytes."""

from sshsdp_fsdp_runtime.plan import presets
from sshsdp_fsdp_runtime.plan.atom import AtomPlan, WeightForm
from sshsdp_fsdp_runtime.plan.claims import Claim
from sshsdp_fsdp_runtime.plan.forecast import Forecast, ForecastRow
from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec, ParameterSpec
from sshsdp_fsdp_runtime.plan.options import Options
from sshsdp_fsdp_runtime.plan.packs import PackPlan
from sshsdp_fsdp_runtime.plan.plan import Plan, build_plan
from sshsdp_fsdp_runtime.plan.resting import RestingTerm, resting_terms
from sshsdp_fsdp_runtime.plan.rules import Cast, Pack, PlanError, Sharding, Update, is_matrix
from sshsdp_fsdp_runtime.plan.schedules import ScheduleBook
from sshsdp_fsdp_runtime.plan.storage import ArenaPlan, Field, Span, Storage
from sshsdp_fsdp_runtime.plan.traffic import TrafficRow, step_traffic
from sshsdp_fsdp_runtime.plan.votes import Votes

__all__ = [
    "ArenaPlan",
    "AtomPlan",
    "Cast",
    "Claim",
    "Field",
    "Forecast",
    "ForecastRow",
    "GroupPlan",
    "ModelSpec",
    "Options",
    "Pack",
    "PackPlan",
    "ParameterSpec",
    "Plan",
    "PlanError",
    "RestingTerm",
    "ScheduleBook",
    "Sharding",
    "Span",
    "Storage",
    "TrafficRow",
    "Update",
    "Votes",
    "WeightForm",
    "build_plan",
    "is_matrix",
    "presets",
    "resting_terms",
    "step_traffic",
]
