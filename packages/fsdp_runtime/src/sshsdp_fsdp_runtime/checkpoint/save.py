"""Writes a checkpoint: each rank its own elements, and the folder appears whole or not at all."""

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.extra import Extra, pointer
from sshsdp_fsdp_runtime.checkpoint.folder import commit, files_of, open_staging, staging_folder
from sshsdp_fsdp_runtime.checkpoint.manifest import ExtraTensor, Manifest, SavedExtra
from sshsdp_fsdp_runtime.checkpoint.process_group import process_group
from sshsdp_fsdp_runtime.checkpoint.protocol import Checkpointable
from sshsdp_fsdp_runtime.checkpoint.signature import Signature
from sshsdp_fsdp_runtime.checkpoint.state import state_dict


def save_checkpoint(
    path: str | os.PathLike[str], model: Checkpointable, extra: Mapping[str, object]
) -> None:
    """Save a model, its optimizer and the caller's values. Collective.

    Every rank writes the elements it owns into a hidden sibling folder that all ranks reach; after
    all have finished, it is renamed to `path`. Interrupted before that, nothing is at `path`. No
    tensor bytes move between ranks.

    Args:
        path: the checkpoint's folder, the same on all ranks; nothing may be there yet.
        model: what to save.
        extra: JSON values and tensors, rank 0's are saved. ``extra["step"]``, an int, orders the
            checkpoints of a folder. ``extra["per_rank"]`` may differ between ranks: each rank's is
            kept for the rank of the same number.

    Raises:
        CheckpointError: on every rank the same; nothing is at `path` then.
    """
    steps = _Save(Path(path), model, extra)
    transport = model.transport
    steps.compare(agree(transport, steps.prepare))
    try:
        agree(transport, steps.open)
        agree(transport, steps.join)
        agree(transport, steps.write)
        agree(transport, steps.commit)
    except CheckpointError:
        if transport.rank == 0:
            shutil.rmtree(steps.staging, ignore_errors=True)
        raise


class _Save:
    """The steps of one rank; every step is followed by an agreement of all ranks."""

    def __init__(self, path: Path, model: Checkpointable, extra: Mapping[str, object]) -> None:
        self.path = path
        self.staging = staging_folder(path)
        self.model = model
        self.transport = model.transport
        self.rank = model.transport.rank
        self.extra = extra
        self.state: dict[str, Any] = {}
        self.group: torch.distributed.ProcessGroup | None = None

    def prepare(self) -> dict[str, Any]:
        """Collect what to write; the answer is what ranks compare and rank 0 records."""
        entries = list(self.model.checkpoint_tensors())
        self.signature = Signature.of(entries)
        self.scalars = Extra.split(dict(self.model.checkpoint_scalars()), "scalars")
        if self.scalars.tensors:
            raise CheckpointError("expected JSON values as scalars of the model, got tensors")
        self.state = state_dict(entries, self.rank)
        shared = {key: value for key, value in self.extra.items() if key != "per_rank"}
        step = shared.get("step")
        self.step = step if isinstance(step, int) else -1
        self.shared = self._add(Extra.split(shared), "extra", write=self.rank == 0)
        own = None
        if "per_rank" in self.extra:
            split = Extra.split(self.extra["per_rank"], "extra/per_rank")
            own = self._add(split, f"per_rank/{self.rank}", write=True)
        scalars = json.dumps(self.scalars.values).encode()
        return {
            "tensors": self.signature.digest(),
            "scalars": hashlib.sha256(scalars).hexdigest(),
            "per_rank": None if own is None else asdict(own),
        }

    def compare(self, answers: list[dict[str, Any]]) -> None:
        """Refuse to save what ranks do not agree about; same result on every rank."""
        for rank, answer in enumerate(answers):
            for what in ("tensors", "scalars"):
                if answer[what] != answers[0][what]:
                    raise CheckpointError(
                        f"expected the same {what} on all ranks, got other ones on rank {rank} "
                        "than on rank 0; all ranks have to save the same model"
                    )
        rows = [answer["per_rank"] for answer in answers]
        missing = [rank for rank, row in enumerate(rows) if row is None]
        if missing and len(missing) < len(rows):
            raise CheckpointError(
                f"expected extra['per_rank'] on all ranks or on none, got none on ranks {missing}"
            )
        self.per_rank = () if missing else tuple(SavedExtra.from_json(row) for row in rows)

    def open(self) -> None:
        """Rank 0 makes the folder."""
        if self.rank == 0:
            open_staging(self.path)

    def join(self) -> None:
        """See the folder, and have a process group."""
        if not self.staging.is_dir():
            raise CheckpointError(
                f"expected a file system that all ranks share, got none of rank 0's "
                f"{self.staging}; choose a path that every rank reaches"
            )
        self.group = process_group(self.transport)

    def write(self) -> None:
        """Write this rank's elements."""
        with warnings.catch_warnings():
            # torch warns when it saves without a process group, which is meant at world 1.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            save(
                self.state,
                storage_writer=FileSystemWriter(self.staging),
                process_group=self.group,
                no_dist=self.group is None,
            )

    def commit(self) -> None:
        """Rank 0 writes the manifest, last, and lets the folder appear."""
        if self.rank == 0:
            Manifest(
                world=self.transport.world,
                step=self.step,
                saved_at=time.time(),
                signature=self.signature,
                scalars=self.scalars.values,
                extra=self.shared,
                per_rank=self.per_rank,
                files=files_of(self.staging),
            ).write(self.staging)
            commit(self.path)

    def _add(self, extra: Extra, prefix: str, *, write: bool) -> SavedExtra:
        rows = []
        for path, tensor in extra.tensors.items():
            key = prefix + pointer(path)
            dtype = str(tensor.dtype).removeprefix("torch.")
            rows.append(ExtraTensor(key, path, tuple(tensor.shape), dtype))
            if write:
                self.state[key] = tensor
        return SavedExtra(extra.values, tuple(rows))
