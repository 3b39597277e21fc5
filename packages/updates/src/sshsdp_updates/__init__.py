"""Staged, sharded optimizers: a rule declares what it touches, the package distributes it."""

from sshsdp_updates.adamw import AdamW
from sshsdp_updates.exchange import FragmentExchange, LocalExchange, Message
from sshsdp_updates.in_process import InProcessExchange, InProcessWorld
from sshsdp_updates.operand import (
    Access,
    Operand,
    OperandAccessError,
    Operands,
    UndeclaredOperandError,
)
from sshsdp_updates.optimizer import ShardedOptimizer
from sshsdp_updates.process_group import ProcessGroupExchange
from sshsdp_updates.protocols import LocalReducer, LocalSteps, Reducer, StepProtocol
from sshsdp_updates.rule import StateField, UpdateRule
from sshsdp_updates.sgd import SGD
from sshsdp_updates.stage import Scalars, Stage
from sshsdp_updates.state_dict import StateFragment
from sshsdp_updates.unit import ELEMENT, Unit
from sshsdp_updates.update_list import UpdateList, UpdateMember

__all__ = [
    "ELEMENT",
    "SGD",
    "Access",
    "AdamW",
    "FragmentExchange",
    "InProcessExchange",
    "InProcessWorld",
    "LocalExchange",
    "LocalReducer",
    "LocalSteps",
    "Message",
    "Operand",
    "OperandAccessError",
    "Operands",
    "ProcessGroupExchange",
    "Reducer",
    "Scalars",
    "ShardedOptimizer",
    "Stage",
    "StateField",
    "StateFragment",
    "StepProtocol",
    "UndeclaredOperandError",
    "Unit",
    "UpdateList",
    "UpdateMember",
    "UpdateRule",
]
