"""What is left of a model that was closed."""

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

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def close(self) -> None:
        """Do nothing, again."""

    def __getattr__(self, name: str) -> NoReturn:
        raise closed_error()


def refuse(*_: Any) -> NoReturn:
    """Hook before the forward of a closed model."""
    raise closed_error()
