"""What the optimizer asks of its surroundings, and the answers when there are none."""

from typing import Literal, Protocol

from torch import Tensor


class Reducer(Protocol):
    """Combines small CPU tensors over all ranks."""

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"]) -> None:
        """Replace `tensor` in place by the sum or maximum over ranks, bit-equal on every rank."""


class LocalReducer:
    """The reducer of a world of one rank."""

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"]) -> None:
        """Leave `tensor` as it is: one rank's sum and maximum are its own value."""


class StepProtocol(Protocol):
    """The owner of the buffers, as seen from a step.

    It may also have ``zero_grad() -> None``, which drops the gradients of the round; without it
    the optimizer fills its members' main gradients with zeros.
    """

    def finalize_gradients(self) -> bool | None:
        """Make ``main_grad`` of every list final; called before anything reads it.

        Returns:
            Whether main gradients hold other values than after the previous call; False lets a
            norm that is already known stand. None means unknown, and the norm is computed again.
            The same on every rank: the norm is a collective.
        """

    def used(self, name: str) -> bool:
        """Tell whether parameter `name` got a gradient this round, on any rank; same everywhere."""

    def begin_update(self) -> None:
        """Expect writes to main weights from here on; called once, after every decision."""

    def end_update(self) -> None:
        """Main weights are final; not called when a stage raised."""


class LocalSteps:
    """Stand-alone use: the caller writes ``main_grad`` itself and uses all of it."""

    def finalize_gradients(self) -> None:
        """Do nothing, and claim nothing: the caller may write gradients at any time."""

    def used(self, name: str) -> bool:  # noqa: ARG002
        """Report that every parameter has a gradient."""
        return True

    def begin_update(self) -> None:
        """Do nothing: nobody else reads the weights."""

    def end_update(self) -> None:
        """Do nothing: nobody else reads the weights."""
