"""Runs a local action on every rank and makes all ranks share its outcome."""

import json
from collections.abc import Callable
from typing import TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from sshsdp_fsdp_runtime.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatchError,
    IncompleteCheckpointError,
    reason,
)
from sshsdp_fsdp_runtime.checkpoint.messages import exchange_all
from sshsdp_fsdp_runtime.checkpoint.protocol import CheckpointTransport

_T = TypeVar("_T")
_ERRORS = {
    error.__name__: error
    for error in (CheckpointError, CheckpointMismatchError, IncompleteCheckpointError)
}


def agree(transport: CheckpointTransport, action: Callable[[], _T]) -> list[_T]:
    """Run `action` on every rank and return all results, or raise the same error everywhere.

    Collective. Without it one rank would fail alone and the others would wait for it.

    Args:
        transport: connects the ranks.
        action: local, or collective with an error behaviour of its own; returns a JSON value.

    Returns:
        The ranks' results in rank order.

    Raises:
        CheckpointError: or the subclass raised by the lowest rank that failed.
    """
    cause: BaseException | None = None
    message: dict[str, object]
    try:
        message = {"result": action()}
    # torch derives CheckpointException, which all ranks raise together, from BaseException.
    except (Exception, CheckpointException) as error:
        cause = error
        message = _describe(error)
    answers = [json.loads(a) for a in exchange_all(transport, json.dumps(message).encode())]
    for rank, answer in enumerate(answers):
        if "error" in answer:
            # What every rank found alike needs no rank; anything else says where to look.
            alike = all(other == answer for other in answers)
            text = answer["error"] if alike else f"rank {rank}: {answer['error']}"
            raise _ERRORS.get(answer["kind"], CheckpointError)(text) from cause
    return [answer["result"] for answer in answers]


def _describe(error: BaseException) -> dict[str, object]:
    kind = type(error).__name__
    return {"error": str(error) if kind in _ERRORS else reason(error), "kind": kind}
