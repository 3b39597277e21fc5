"""Staged, sharded optimizers: a rule declares what it touches, the package distributes it."""

from sshsdp_updates.adamw import AdamW
from sshsdp_updates.check_rule import RuleError, check_rule
from sshsdp_updates.declarations import TemporaryError
from sshsdp_updates.exchange import FragmentExchange, LocalExchange, Message
from sshsdp_updates.holders import RowHolders, WholeHolders
from sshsdp_updates.in_process import InProcessExchange, InProcessWorld
from sshsdp_updates.iteration import ITERATIONS, Iteration
from sshsdp_updates.labels import labelled
from sshsdp_updates.lion import Lion
from sshsdp_updates.muon import Muon
from sshsdp_updates.muon_parts import SCALES
from sshsdp_updates.newton_schulz import newton_schulz
from sshsdp_updates.normuon import NorMuon
from sshsdp_updates.operand import (
    Access,
    Operand,
    OperandAccessError,
    Operands,
    UndeclaredOperandError,
)
from sshsdp_updates.optimizer import ShardedOptimizer
from sshsdp_updates.plan import PlanList, PlanMember, UpdatePlan
from sshsdp_updates.planner import plan_updates
from sshsdp_updates.process_group import ProcessGroupExchange
from sshsdp_updates.protocols import LocalReducer, LocalSteps, Reducer, StepProtocol
from sshsdp_updates.rule import StateField, Temporary, UpdateRule
from sshsdp_updates.sgd import SGD
from sshsdp_updates.stage import Scalars, Stage, StageKind
from sshsdp_updates.staged_fields import travelling_bytes
from sshsdp_updates.standalone import optimizer_for
from sshsdp_updates.state_dict import StateFragment
from sshsdp_updates.torch_rule import TorchRule
from sshsdp_updates.traffic import PlannedExchange, Traffic, planned_exchanges
from sshsdp_updates.unit import (
    ELEMENT,
    OWN,
    ROW,
    TENSOR,
    TensorUnit,
    Unit,
    columns,
    experts,
    heads,
    pieces,
    whole,
)
from sshsdp_updates.update_list import UpdateList, UpdateMember

__all__ = [
    "ELEMENT",
    "ITERATIONS",
    "OWN",
    "ROW",
    "SCALES",
    "SGD",
    "TENSOR",
    "Access",
    "AdamW",
    "FragmentExchange",
    "InProcessExchange",
    "InProcessWorld",
    "Iteration",
    "Lion",
    "LocalExchange",
    "LocalReducer",
    "LocalSteps",
    "Message",
    "Muon",
    "NorMuon",
    "Operand",
    "OperandAccessError",
    "Operands",
    "PlanList",
    "PlanMember",
    "PlannedExchange",
    "ProcessGroupExchange",
    "Reducer",
    "RowHolders",
    "RuleError",
    "Scalars",
    "ShardedOptimizer",
    "Stage",
    "StageKind",
    "StateField",
    "StateFragment",
    "StepProtocol",
    "Temporary",
    "TemporaryError",
    "TensorUnit",
    "TorchRule",
    "Traffic",
    "UndeclaredOperandError",
    "Unit",
    "UpdateList",
    "UpdateMember",
    "UpdatePlan",
    "UpdateRule",
    "WholeHolders",
    "check_rule",
    "columns",
    "experts",
    "heads",
    "labelled",
    "newton_schulz",
    "optimizer_for",
    "pieces",
    "plan_updates",
    "planned_exchanges",
    "travelling_bytes",
    "whole",
]
