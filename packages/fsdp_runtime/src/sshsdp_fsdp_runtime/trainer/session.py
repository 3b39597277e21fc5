"""Session: the one place where the trainer meets the sharded runtime.

Everything else in the trainer works with the `Session` protocol, so it also runs on a model that is
not sharded at all.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from sshsdp_fsdp_runtime import ShardedModule, fully_shard
from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    PendingSave,
    load_checkpoint,
    save_checkpoint,
)
from sshsdp_fsdp_runtime.debug import StragglerWatch, trace
from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.model import Decoder
from sshsdp_fsdp_runtime.trainer.recipe import decoder_packs, decoder_updates
from sshsdp_fsdp_runtime.trainer.seat import Seat
from sshsdp_zerosm import Topology, Transport, connect


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

    def find_nonfinite(self) -> Sequence[str]:
        """What of the model, its gradients and its optimizer is inf or NaN. Collective."""
        ...

    def watch_stragglers(self) -> StragglerWatch:
        """Times steps from now on, and waits in them."""
        ...

    def trace(self, path: Path) -> AbstractContextManager[None]:
        """Write a Chrome trace of what this rank does inside."""
        ...

    def save(self, path: Path, extra: Mapping[str, Any]) -> None:
        """Write model, optimizer and `extra` into the new folder `path`. Collective.

        The folder appears whole or not at all, at the latest when the session is closed.
        ``extra["per_rank"]`` may differ between ranks.
        """
        ...

    def load(self, path: Path) -> Mapping[str, Any]:
        """Restore what `save` wrote, on any number of ranks; the extra. Collective.

        ``extra["per_rank"]`` is this rank's; None, when there was no rank of that number.
        """
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


OpenSession = Callable[[Decoder, TrainConfig, Seat], Session]


class ShardedSession:
    """A session of the sharded runtime: weights, gradients and state spread over all ranks."""

    def __init__(self, model: Decoder, config: TrainConfig, seat: Seat) -> None:
        nodes = config.nodes
        topology = None if nodes is None else Topology(nodes, seat.world // nodes)
        self._transport: Transport = connect(
            seat.rank, seat.world, seat.store, timeout=config.timeout, topology=topology
        )
        sharded = fully_shard(
            model,
            groups=["layers.*"],
            packs=decoder_packs(model.shape),
            updates=decoder_updates(config.optimizer, model.shape),
            transport=self._transport,
            form="private" if config.debug.poison else "auto",
            poison=config.debug.poison,
        )
        self._in_background = config.report.background_checkpoints
        self._saving: PendingSave | None = None
        # The same object, with a class that is also a ShardedModule.
        assert isinstance(sharded, ShardedModule)
        self._sharded: ShardedModule = sharded

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

    def find_nonfinite(self) -> Sequence[str]:
        """See `Session`."""
        return [str(found) for found in self._sharded.find_nonfinite()]

    def watch_stragglers(self) -> StragglerWatch:
        """See `Session`."""
        return StragglerWatch(self._transport)

    def trace(self, path: Path) -> AbstractContextManager[None]:
        """See `Session`."""
        return trace(self._sharded, path)

    def save(self, path: Path, extra: Mapping[str, Any]) -> None:
        """See `Session`."""
        self._saving = save_checkpoint(path, self._sharded, extra, asynchronous=self._in_background)

    def load(self, path: Path) -> Mapping[str, Any]:
        """See `Session`."""
        try:
            return load_checkpoint(path, self._sharded)
        except CheckpointError as error:
            raise InputError(str(error)) from error

    def planned_bytes(self) -> int | None:
        """See `Session`."""
        return self._sharded.plan.forecast().host_bytes()

    def abort(self, reason: str) -> None:
        """See `Session`."""
        self._transport.abort(reason)

    def close(self) -> None:
        """See `Session`."""
        if self._saving is not None:
            self._saving.wait()
        self._sharded.close()
        self._transport.close()
