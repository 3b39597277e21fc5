"""Takes weights and optimizer state that plain PyTorch or FSDP2 saved."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError, CheckpointMismatchError, reason
from sshsdp_fsdp_runtime.checkpoint.manifest import METADATA
from sshsdp_fsdp_runtime.checkpoint.protocol import Checkpointable, check_sharded
from sshsdp_fsdp_runtime.checkpoint.reading import read_into, saved_items
from sshsdp_fsdp_runtime.checkpoint.source import agree_on_source
from sshsdp_fsdp_runtime.runtime import CheckpointEntry, FragmentTensor

_SHOWN = 5
_OURS = "optimizer.state."


def load_torch_checkpoint(
    path: str | os.PathLike[str] | None,
    model: Checkpointable,
    *,
    model_key: str = "model",
    optimizer_key: str | None = "optimizer",
) -> None:
    """Load a folder that ``torch.distributed.checkpoint.save`` wrote. Collective.

    The folder holds ``{model_key: get_model_state_dict(m), optimizer_key:
    get_optimizer_state_dict(m, o)}`` of ``torch.distributed.checkpoint.state_dict``, of a plain or
    an FSDP2 model. Values are converted to the dtypes that the model has here. Ranks read what
    they hold; nothing is sent.

    Args:
        path: the folder, or copies of it; on all ranks the same save.
        model: has the names and shapes of the saved one, and update rules with the saved state.
        model_key: dotted place of the model's state in what was saved; empty: at the top.
        optimizer_key: of the optimizer's state; None takes the weights only and leaves the
            optimizer as it is.

    Raises:
        TypeError: a model that is not sharded.
        CheckpointMismatchError: names, shapes or state differ; nothing was changed.
        CheckpointError: ranks gave different ones, or it cannot be read. On every rank the same.
    """
    check_sharded(model)
    steps = _TorchLoad(model, model_key, optimizer_key)
    agree_on_source(model.transport, path, steps.open, (model_key, optimizer_key))
    agree(model.transport, steps.prepare)
    agree(model.transport, steps.read)
    agree(model.transport, steps.finish)
    model.weights_loaded()


class _TorchLoad:
    def __init__(self, model: Checkpointable, model_key: str, optimizer_key: str | None) -> None:
        self._model = model
        self._model_prefix = f"{model_key}." if model_key else ""
        self._optimizer = optimizer_key
        self._state: dict[str, Any] = {}
        self._absent: list[CheckpointEntry] = []
        self._faults: list[str] = []

    def open(self, path: Path) -> bytes:
        """The table of contents, which has an identifier of its save: what ranks compare."""
        self._path = path
        if not (path / METADATA).is_file():
            raise CheckpointError(
                f"expected a folder of torch.distributed.checkpoint, got {path}, which has no "
                f"{METADATA}; give the folder that torch.distributed.checkpoint.save() wrote"
            )
        return (path / METADATA).read_bytes()

    def prepare(self) -> None:
        """Find every tensor in the folder, before the first write into the model."""
        try:
            self._items = saved_items(self._path)
        except Exception as error:  # unpickling of a damaged file raises anything
            raise CheckpointError(
                f"expected a readable {METADATA} in {self._path}, got a damaged one "
                f"({reason(error)}); copy the folder again or load another checkpoint"
            ) from error
        self._scalars = dict(self._model.checkpoint_scalars())
        self._numbers = _Numbers(f"{self._optimizer}.", self._items, self._state)
        for entry in self._model.checkpoint_tensors():
            if entry.key.startswith(_OURS):
                self._find_state(entry)
            else:
                self._find(entry, self._model_prefix + entry.key.removeprefix("model."))
        if self._faults:
            more = len(self._faults) - _SHOWN
            raise CheckpointMismatchError(
                f"expected a checkpoint of this model, got {self._path}, where "
                + "; ".join(self._faults[:_SHOWN])
                + (f"; and {more} more" if more > 0 else "")
            )
        if self._optimizer is not None and self._scalars:
            self._numbers.want(self._scalars["step"], self._scalars["param_groups"])

    def read(self) -> None:
        """Read this rank's elements into the model."""
        read_into(self._state, self._path)
        for entry in self._absent:
            entry.tensor.zero_()

    def finish(self) -> None:
        """Give the model its step counts and hyperparameters."""
        if self._optimizer is None or not self._scalars:
            return
        steps = {name: self._numbers.step(name) for name in self._scalars["step"]}
        groups = [self._numbers.group(group) for group in self._scalars["param_groups"]]
        self._model.load_checkpoint_scalars({"step": steps, "param_groups": groups})

    def _find_state(self, entry: CheckpointEntry) -> None:
        if self._optimizer is None:
            return
        name, _, field = entry.key.removeprefix(_OURS).rpartition(".")
        # torch has no state of a parameter that has never had a gradient.
        if name in self._numbers.with_state:
            self._find(entry, f"{self._optimizer}.state.{name}.{field}")
        else:
            self._absent.append(entry)

    def _find(self, entry: CheckpointEntry, key: str) -> None:
        item = self._items.get(key)
        if not isinstance(item, TensorStorageMetadata):
            self._faults.append(f"there is no tensor {key!r}")
        elif tuple(item.size) != tuple(entry.shape):
            self._faults.append(
                f"{key!r} has shape {tuple(item.size)} instead of {tuple(entry.shape)}"
            )
        else:
            self._state[key] = FragmentTensor(entry.tensor, entry.shape, entry.start)


class _Numbers:
    """Step counts and hyperparameters, by torch's keys."""

    def __init__(self, prefix: str, items: Mapping[str, Any], state: dict[str, Any]) -> None:
        self._items, self._state = items, state
        self._groups = f"{prefix}param_groups."
        self._states = f"{prefix}state."
        self.with_state = {
            key.removeprefix(self._states).rpartition(".")[0]
            for key in items
            if key.startswith(self._states)
        }

    def want(self, names: Iterable[str], groups: Sequence[Mapping[str, Any]]) -> None:
        """Ask for the steps of `names` and for the hyperparameters that one of `groups` has."""
        for name in names:
            if f"{self._states}{name}.step" in self._items:
                self._state[f"{self._states}{name}.step"] = torch.empty(())
        wanted = {key for group in groups for key in _plain_keys(group)}
        members = {name for group in groups for name in group["params"]}
        for key in (key for key in self._items if key.startswith(self._groups)):
            where, _, last = key.removeprefix(self._groups).rpartition(".")
            # A group is numbered, or, where it was flattened, its members have its values.
            if last == "params" or (last in wanted and (where.isdecimal() or where in members)):
                self._state[key] = None

    def step(self, name: str) -> float:
        """As saved; where torch's optimizer keeps none, 1 if there is state, so that it counts."""
        step = self._state.get(f"{self._states}{name}.step")
        return float(name in self.with_state if step is None else step)

    def group(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """The group with the saved hyperparameters of its members.

        Raises:
            CheckpointMismatchError: members of one group have different ones.
        """
        places = self._places()
        values = dict(ours)
        for key in _plain_keys(ours):
            found = (
                self._state.get(f"{self._groups}{where}.{key}")
                for name in ours["params"]
                for where in (name, places.get(name))
            )
            known = [value for value in found if value is not None]
            if any(value != known[0] for value in known):
                raise CheckpointMismatchError(
                    f"expected one {key} for the parameters that share an update rule, got "
                    f"{known[0]!r} and others in the checkpoint; give them rules of their own"
                )
            if known:
                values[key] = known[0]
        return values

    def _places(self) -> dict[str, str]:
        """Name of a parameter -> number of its group."""
        return {
            name: key.removeprefix(self._groups).removesuffix(".params")
            for key, names in self._state.items()
            if key.startswith(self._groups) and key.endswith(".params")
            for name in names
        }


def _plain_keys(group: Mapping[str, Any]) -> list[str]:
    """Hyperparameters that torch keeps in the same form."""
    return [key for key, value in group.items() if key != "params" and _plain(value)]


def _plain(value: Any) -> bool:
    """A hyperparameter that torch keeps in the same form."""
    number = isinstance(value, int | float | bool)
    return number or (isinstance(value, list | tuple) and all(map(_plain, value)))
