"""An exponential average of a sharded model's weights: one more shard, and no communication."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from sshsdp_fsdp_runtime.runtime.entry import CheckpointEntry, layout_facts, model_entries
from sshsdp_fsdp_runtime.runtime.pieces import own_piece
from sshsdp_fsdp_runtime.runtime.sharded_module import ShardedModule
from sshsdp_fsdp_runtime.runtime.state import RuntimeState
from sshsdp_zerosm import Transport

_CHUNK = 1 << 20  # elements that are exchanged at a time


class ExponentialAverage:
    """``average = decay * average + (1 - decay) * weight`` over each rank's main weights.

    In the arithmetic of ``AveragedModel`` of ``torch.optim.swa_utils`` with its
    ``get_ema_multi_avg_fn``: the first update takes the weights as they are. Buffers are the
    model's, and so are frozen weights. It is saved and loaded like a model, by
    ``save_checkpoint(path, average, extra)``, in a folder of its own, at any number of ranks, and
    plain PyTorch finds a model there.

    Attributes:
        decay: in [0, 1); may be changed between updates.
        updates: how often `update` was called.
    """

    def __init__(self, model: Any, decay: float) -> None:
        """Begin with the weights of now.

        Args:
            model: what ``fully_shard`` returned.
            decay: the share of the average that an update keeps.

        Raises:
            TypeError: the model is not sharded.
            ValueError: another decay.
        """
        if not isinstance(model, ShardedModule):
            raise TypeError(
                f"expected a model after fully_shard(), got {type(model).__name__}; for others "
                "there is torch.optim.swa_utils.AveragedModel"
            )
        self._model = model
        self.decay = decay
        self.updates = 0
        _check(decay)
        self._averages = {name: flat.clone() for name, flat in _weights(model._sharded).items()}

    def update(self) -> None:
        """Take the weights of now into the average; after a step. Local.

        Raises:
            ValueError: another decay.
            RuntimeError: the average is in the model.
        """
        _check(self.decay)
        self._model._sharded.update.check_own_weights("an update of the average")
        weights = _weights(self._model._sharded)
        with torch.no_grad():
            if self.updates:
                averages = [self._averages[name] for name in weights]
                torch._foreach_lerp_(averages, list(weights.values()), 1 - self.decay)
            else:
                for name, flat in weights.items():
                    self._averages[name].copy_(flat)
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the average in the model, for evaluation and exports. Collective.

        On entry and on exit, all ranks. Weights and average change places, so nothing is lost and
        little memory is taken. Steps and loads wait until after it.
        """
        update = self._model._sharded.update
        update.check("an average")
        update.check_own_weights("an average")
        self._exchange()
        update.averaged = True
        try:
            yield
        finally:
            update.averaged = False
            self._exchange()

    def _exchange(self) -> None:
        state = self._model._sharded
        state.update.begin()
        with torch.no_grad():
            for name, flat in _weights(state).items():
                pairs = zip(
                    torch.split(flat, _CHUNK),
                    torch.split(self._averages[name], _CHUNK),
                    strict=True,
                )
                for weights, average in pairs:
                    kept = weights.clone()
                    weights.copy_(average)
                    average.copy_(kept)
        state.update.end()

    # What save_checkpoint and load_checkpoint need

    @property
    def transport(self) -> Transport:
        """Connects the ranks."""
        return self._model.transport

    def checkpoint_tensors(self) -> Iterator[CheckpointEntry]:
        """The average under the model's own names; frozen weights and buffers as they are."""
        state = self._model._sharded
        state.update.check_own_weights("a checkpoint of the average")
        for entry in model_entries(self._model, state):
            name = (entry.tied_to or entry.key).removeprefix("model.")
            handle = state.by_name.get(name)
            if handle is None or not handle.buffers.atom.trainable:
                yield entry
                continue
            average = self._averages[handle.buffers.atom.name]
            fragment, _ = own_piece(handle, state.transport.rank)
            start = fragment.local_offset
            yield replace(entry, tensor=average[start : start + fragment.numel])

    def checkpoint_scalars(self) -> dict[str, Any]:
        """Decay and number of updates."""
        return {"average": {"decay": self.decay, "updates": self.updates}}

    def load_checkpoint_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take back what `checkpoint_scalars` gave."""
        self.decay = scalars["average"]["decay"]
        self.updates = scalars["average"]["updates"]

    def checkpoint_layout(self) -> dict[str, Any]:
        """How the ranks share it."""
        return layout_facts(self._model.plan)

    def weights_loaded(self) -> None:
        """Frozen weights were overwritten with the average's own: they are ready to use."""
        self._model.weights_loaded()


def _weights(state: RuntimeState) -> dict[str, torch.Tensor]:
    """This rank's main weights that are updated, per atom, 1-D."""
    return {name: b.truth for name, b in state.buffers.atoms.items() if b.atom.trainable}


def _check(decay: float) -> None:
    if not isinstance(decay, Real) or not 0 <= decay < 1:
        raise ValueError(f"expected a decay in [0, 1), got {decay!r}; 0.999 is usual")
