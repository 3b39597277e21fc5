"""What one rank puts into a checkpoint, collected before anything is written."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.extra import Extra, pointer
from sshsdp_fsdp_runtime.checkpoint.manifest import ExtraTensor, SavedExtra
from sshsdp_fsdp_runtime.checkpoint.protocol import Checkpointable
from sshsdp_fsdp_runtime.checkpoint.signature import Signature
from sshsdp_fsdp_runtime.checkpoint.state import state_dict
from sshsdp_fsdp_runtime.checkpoint.torch_keys import torch_numbers


class Contents:
    """The state of this rank, and what ranks compare.

    Attributes:
        state: for torch.distributed.checkpoint.
        signature: tensors of the model and its optimizer.
        scalars: the model's JSON values.
        shared: the caller's values that are equal on all ranks.
        per_rank: the caller's values of every rank; set by `compare`.
        step: training step if the caller gave one, else -1.
    """

    def __init__(self, model: Checkpointable, extra: Mapping[str, object]) -> None:
        """Collect; local.

        Raises:
            TypeError, ValueError, CheckpointError: something can't be saved; the text says what.
        """
        if not isinstance(extra, Mapping):
            raise CheckpointError(
                f"expected a dict as extra, got {type(extra).__name__}; give {{}} to save nothing "
                "of your own"
            )
        rank = model.transport.rank
        entries = list(model.checkpoint_tensors())
        self.signature = Signature.of(entries)
        scalars = Extra.split(dict(model.checkpoint_scalars()), "scalars")
        if scalars.tensors:
            raise CheckpointError("expected JSON values as scalars of the model, got tensors")
        self.scalars = scalars.values
        self.state: dict[str, Any] = state_dict(entries, rank)
        if rank == 0:
            _merge(self.state, {"optimizer": torch_numbers(self.scalars)})
        shared = {key: value for key, value in extra.items() if key != "per_rank"}
        step = shared.get("step")
        self.step = step if isinstance(step, int) else -1
        split = Extra.split(shared)
        self._digests = split.digests()
        self.shared = self._add(split, "extra", write=rank == 0)
        self.per_rank: tuple[SavedExtra, ...] = ()
        self._own: SavedExtra | None = None
        if "per_rank" in extra:
            split = Extra.split(extra["per_rank"], "extra/per_rank")
            self._own = self._add(split, f"per_rank/{rank}", write=True)

    def answer(self) -> dict[str, Any]:
        """JSON values for `compare`."""
        scalars = json.dumps(self.scalars).encode()
        return {
            "tensors": self.signature.digest(),
            "scalars": hashlib.sha256(scalars).hexdigest(),
            "extra": self._digests,
            "per_rank": None if self._own is None else asdict(self._own),
        }

    def compare(self, answers: list[dict[str, Any]]) -> None:
        """Refuse to save what ranks do not agree about; same result on every rank.

        Raises:
            CheckpointError: naming what differs and where.
        """
        for rank, answer in enumerate(answers):
            for what in ("tensors", "scalars"):
                if answer[what] != answers[0][what]:
                    raise CheckpointError(
                        f"expected the same {what} on all ranks, got other ones on rank {rank} "
                        "than on rank 0; all ranks have to save the same model"
                    )
            _compare_extra(rank, answer["extra"], answers[0]["extra"])
        rows = [answer["per_rank"] for answer in answers]
        missing = [rank for rank, row in enumerate(rows) if row is None]
        if missing and len(missing) < len(rows):
            raise CheckpointError(
                f"expected extra['per_rank'] on all ranks or on none, got none on ranks {missing}"
            )
        self.per_rank = () if missing else tuple(SavedExtra.from_json(row) for row in rows)

    def _add(self, extra: Extra, prefix: str, *, write: bool) -> SavedExtra:
        rows = []
        for path, tensor in extra.tensors.items():
            key = prefix + pointer(path)
            dtype = str(tensor.dtype).removeprefix("torch.")
            rows.append(ExtraTensor(key, path, tuple(tensor.shape), dtype))
            if write:
                self.state[key] = tensor
        return SavedExtra(extra.values, tuple(rows))


def _compare_extra(rank: int, own: Mapping[str, str], first: Mapping[str, str]) -> None:
    for key in dict.fromkeys((*first, *own)):
        if own.get(key) != first.get(key):
            got = "none" if key not in own else "one" if key not in first else "another one"
            raise CheckpointError(
                f"expected extra[{key!r}] on rank {rank} as on rank 0, got {got}; give all ranks "
                "one value, or put what each has of its own under extra['per_rank']"
            )


def _merge(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
