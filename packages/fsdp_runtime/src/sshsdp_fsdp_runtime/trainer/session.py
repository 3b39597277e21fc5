"""Session: the one place where the trainer meets the sharded runtime.

Everything else in the trainer works with the `Session` protocol, so it also runs on a model that is
not sharded at all.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW
from sshsdp_zerosm import Transport, connect

from .. import Sharding, Update, fully_shard, is_matrix
from ..checkpoint import load_checkpoint, save_checkpoint
from .config import OptimizerConfig
from .model import Decoder
from .seat import Seat


class Session(Protocol):
    """A model, its optimizer and the other ranks."""

    @property
    def model(self) -> nn.Module:
        """Called as usual; the backward pass brings the gradients together."""
        ...

    @property
    def optimizer(self) -> Optimizer:
        """Updates the model."""
        ...

    def clip_grad_norm(self, largest: float) -> Tensor:
        """Scale the gradients down to a global 2-norm of `largest`; the norm before: 0-d."""
        ...

    def exchange(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, in rank order. Collective."""
        ...

    def save(self, path: Path, extra: Mapping[str, Any]) -> None:
        """Write model, optimizer and `extra` into the folder `path`. Collective."""
        ...

    def load(self, path: Path) -> Mapping[str, Any]:
        """Restore what `save` wrote; the extra. Collective."""
        ...

    def planned_bytes(self) -> int | None:
        """Bytes of buffers that the plan foresees over all ranks; None: there is no plan."""
        ...

    def abort(self, reason: str) -> None:
        """Wake the other ranks with an error."""
        ...

    def close(self) -> None:
        """End the session. Collective."""
        ...


OpenSession = Callable[[Decoder, OptimizerConfig, Seat], Session]


class ShardedSession:
    """A session of the sharded runtime: weights, gradients and state spread over all ranks."""

    def __init__(self, model: Decoder, config: OptimizerConfig, seat: Seat) -> None:
        self._transport: Transport = connect(seat.rank, seat.world, seat.store)
        rule = {"lr": config.lr, "betas": config.betas}
        self._sharded = fully_shard(
            model,
            sharding=[Sharding("**", Degrees(seat.world, seat.world, seat.world))],
            groups=["layers.*"],
            updates=[
                Update("**", AdamW(**rule, weight_decay=config.weight_decay), where=is_matrix),
                Update("**", AdamW(**rule, weight_decay=0.0)),
            ],
            transport=self._transport,
        )

    @property
    def model(self) -> nn.Module:
        """The sharded model."""
        return self._sharded

    @property
    def optimizer(self) -> Optimizer:
        """The sharded optimizer."""
        return self._sharded.optimizer

    def clip_grad_norm(self, largest: float) -> Tensor:
        """See `Session`."""
        return self._sharded.optimizer.clip_grad_norm_(largest)

    def exchange(self, payload: bytes) -> list[bytes]:
        """See `Session`."""
        return self._transport.exchange(payload)

    def save(self, path: Path, extra: Mapping[str, Any]) -> None:
        """See `Session`."""
        save_checkpoint(path, self._sharded, dict(extra))

    def load(self, path: Path) -> Mapping[str, Any]:
        """See `Session`."""
        return load_checkpoint(path, self._sharded)

    def planned_bytes(self) -> int | None:
        """See `Session`."""
        forecast = self._sharded.plan.forecast()
        return sum(forecast.total_bytes(rank) for rank in range(self._transport.world))

    def abort(self, reason: str) -> None:
        """See `Session`."""
        self._transport.abort(reason)

    def close(self) -> None:
        """See `Session`."""
        self._sharded.close()
