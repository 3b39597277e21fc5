"""What a model has to offer so that it can be saved and loaded."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from sshsdp_fsdp_runtime.runtime import CheckpointEntry


class CheckpointTransport(Protocol):
    """The part of a transport that checkpoints need: small messages, never tensor bytes."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def world(self) -> int:
        """Number of ranks."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds after which a wait for another rank fails."""
        ...

    @property
    def failed(self) -> bool:
        """Whether ranks are known to be gone or late; asked by another thread."""
        ...

    @property
    def max_exchange_bytes(self) -> int:
        """Longest payload of an exchange."""
        ...

    def exchange(self, payload: bytes) -> list[bytes]:
        """All ranks' payloads in rank order. Collective."""
        ...


class Checkpointable(Protocol):
    """A sharded model with its optimizer. All ranks give the same keys in the same order."""

    @property
    def transport(self) -> CheckpointTransport:
        """Connects the ranks of the model."""
        ...

    def checkpoint_tensors(self) -> Iterator[CheckpointEntry]:
        """Every logical tensor, also those of which this rank holds no element."""
        ...

    def checkpoint_scalars(self) -> Mapping[str, Any]:
        """State that is no tensor (steps, hyperparameters): JSON values, equal on all ranks."""
        ...

    def load_checkpoint_scalars(self, scalars: dict[str, Any]) -> None:
        """Take back what `checkpoint_scalars` gave; tuples come back as lists."""
        ...

    def checkpoint_layout(self) -> Mapping[str, Any]:
        """How the ranks share the model, for people: JSON values, equal on all ranks."""
        ...

    def weights_loaded(self) -> None:
        """Called once, on all ranks, after the tensors were overwritten in place."""
        ...


def check_sharded(model: object) -> None:
    """Refuse what is no `Checkpointable`, such as a plain model; on every rank alike.

    Raises:
        TypeError: with what to do.
    """
    if not hasattr(model, "checkpoint_tensors"):
        raise TypeError(
            f"expected a model after fully_shard(), got {type(model).__name__}; shard it first, or "
            "use torch.save() and torch.load(), or torch.distributed.checkpoint, for a plain one"
        )
