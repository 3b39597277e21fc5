"""What is left of a model that was closed, or that is another process's."""

from collections.abc import Callable
from typing import Any, NoReturn

from sshsdp_fsdp_runtime.plan import Plan


def closed_error() -> RuntimeError:
    """The answer to every use of a closed model."""
    return RuntimeError(
        "expected an open model, got one whose buffers close() has let go; take what is needed, "
        "for example full_state_dict(), before closing it, and build the model again"
    )


class ClosedState:
    """Takes the place of the runtime state: knows the plan, and answers all else by an error."""

    def __init__(self, plan: Plan, error: RuntimeError) -> None:
        self.plan = plan
        self._error = error

    def close(self) -> None:
        """Do nothing, again."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _again(self._error)


def refuser(error: RuntimeError) -> Callable[..., NoReturn]:
    """Hook before the forward of a model that can't be used any more."""

    def refuse(*_: Any) -> NoReturn:
        raise _again(error)

    return refuse


def _again(error: RuntimeError) -> RuntimeError:
    """A new one with the same text: one that was raised keeps the frames of its callers alive."""
    return type(error)(*error.args)
