"""Which part of a step a wait belongs to, by the channel of the schedule it happens in."""

import re
from enum import StrEnum

from sshsdp_fsdp_runtime.plan.storage import TEMPORARIES, Field


class WaitPhase(StrEnum):
    """Why a rank waits for another one."""

    WEIGHTS = "weights"
    """Before weights are read: their owners have not published."""
    GRADIENTS = "gradients"
    """In backward: a peer has not written its gradients, or not read this rank's."""
    AGREEMENT = "agreement"
    """A peer has not ended the backward pass."""
    FINALIZE = "finalize"
    """Sums over all microbatches and replicas."""
    UPDATE = "update"
    """Pieces of update units, and, between nodes, shards that others update a part of."""
    QUIET = "quiet"
    """Before weights change: a peer still reads them."""
    OTHER = "other"
    """Norms, checkpoints, messages of the caller."""


_PURPOSES = (
    ("generation", WaitPhase.WEIGHTS),
    (f"gather {Field.WEIGHTS} ", WaitPhase.WEIGHTS),
    (f"gather {Field.SHARD} ", WaitPhase.UPDATE),
    ("slot", WaitPhase.GRADIENTS),
    (f"reduce {Field.GRADIENTS} ", WaitPhase.GRADIENTS),
    (f"reduce {Field.ACCUMULATOR} ", WaitPhase.FINALIZE),
    ("sums ", WaitPhase.FINALIZE),
    ("replicas ", WaitPhase.FINALIZE),
    ("votes.", WaitPhase.AGREEMENT),
    (f"{TEMPORARIES}.", WaitPhase.UPDATE),
    ("barrier", WaitPhase.QUIET),
)
_MODEL = re.compile(r"model\d+\.")


def phase_of(channel: str) -> WaitPhase:
    """The phase of a wait, by the channel that `ScheduleBook` has given it, of any model."""
    purpose = _MODEL.sub("", channel, count=1)
    return next((p for start, p in _PURPOSES if purpose.startswith(start)), WaitPhase.OTHER)
