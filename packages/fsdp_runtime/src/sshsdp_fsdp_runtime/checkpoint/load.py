"""Reads a checkpoint into a model of any world size and degrees."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointMismatchError
from sshsdp_fsdp_runtime.checkpoint.extra import Extra
from sshsdp_fsdp_runtime.checkpoint.extra import Path as ExtraPath
from sshsdp_fsdp_runtime.checkpoint.fresh import FreshState, trained_otherwise, updated_otherwise
from sshsdp_fsdp_runtime.checkpoint.manifest import Manifest, SavedExtra
from sshsdp_fsdp_runtime.checkpoint.protocol import Checkpointable, check_sharded
from sshsdp_fsdp_runtime.checkpoint.reading import read_into
from sshsdp_fsdp_runtime.checkpoint.signature import Signature
from sshsdp_fsdp_runtime.checkpoint.source import agree_on_source
from sshsdp_fsdp_runtime.checkpoint.state import state_dict
from sshsdp_updates import labelled


def load_checkpoint(
    path: str | os.PathLike[str] | None,
    model: Checkpointable,
    *,
    verify: bool = True,
    fresh: Sequence[str] = (),
) -> dict[str, object]:
    """Load what `save_checkpoint` wrote, in place. Collective.

    Ranks read what they hold and tell each other nothing but which checkpoint it is, and that they
    have.

    Args:
        path: folder of a complete checkpoint, saved at any world size and degrees; on all ranks
            the same checkpoint, or a copy of it. None, as `newest_checkpoint` returns where there
            is none, is an error.
        model: has the names, shapes and dtypes of the saved one.
        verify: compare checksums before anything is changed: every file is read once more, each
            by one rank. Lengths, and the checksum of the table of contents, are compared anyway.
        fresh: patterns of parameters of which only the weight is taken, whatever its saved dtype.
            Optimizer state stays as it is here, which is fresh where the model was just sharded.
            For parameters that were frozen when the saved model was sharded and are trained here,
            or the other way round. A rule that has only such parameters keeps its hyperparameters;
            others take the saved ones.

    Returns:
        The saved `extra`, tensors on the CPU. ``"per_rank"``, if it was saved, is the entry of the
        rank of the same number, None on a rank that the saving world did not have.

    Raises:
        TypeError: a model that is not sharded.
        CheckpointMismatchError: the checkpoint is of another model; nothing was changed.
        IncompleteCheckpointError: the save was interrupted, or files are missing or damaged;
            nothing was changed.
        CheckpointError: ranks gave different checkpoints, or it cannot be read. If the text speaks
            of reading, the model may be half overwritten: load another checkpoint before using it.
            On every rank the same.
    """
    check_sharded(model)
    steps = _Load(model, verify, fresh)
    with labelled("sshsdp::checkpoint check"):
        agree_on_source(model.transport, path, steps.open, fresh)
        agree(model.transport, steps.prepare)
    with labelled("sshsdp::checkpoint read"):
        agree(model.transport, steps.read)
    agree(model.transport, steps.finish)
    model.weights_loaded()
    return steps.result


class _Load:
    """The steps of one rank; every step is followed by an agreement of all ranks."""

    def __init__(self, model: Checkpointable, verify: bool, fresh: Sequence[str]) -> None:
        self.verify = verify
        self.fresh = fresh
        self.model = model
        self.rank = model.transport.rank
        self.result: dict[str, object] = {}

    def open(self, path: Path) -> bytes:
        """Read the manifest; its bytes are what ranks compare."""
        self.path = path
        self.manifest = Manifest.read(path)
        return self.manifest.content

    def prepare(self) -> None:
        """Check everything that can be checked before the first write into the model."""
        entries = list(self.model.checkpoint_tensors())
        fresh = FreshState.of(self.fresh, entries)
        self._compare(Signature.of(entries), fresh)
        if self.rank == 0:
            self.manifest.check_files(self.path)
        if self.verify:
            self.manifest.check_contents(self.path, self.rank, self.model.transport.world)
        self.state = state_dict(fresh.without(entries), self.rank)
        self.scalars = self.manifest.scalars
        if fresh.names:
            self.scalars = fresh.scalars(self.scalars, self.model.checkpoint_scalars())

    def read(self) -> None:
        """Read this rank's elements into the model, and the tensors of `extra`."""
        self.result = self._allocate(self.manifest.extra)
        if self.manifest.per_rank:
            known = self.rank < len(self.manifest.per_rank)
            own = self.manifest.per_rank[self.rank] if known else SavedExtra()
            self.result["per_rank"] = self._allocate(own)
        read_into(self.state, self.path)

    def finish(self) -> None:
        """Give the model its scalars."""
        self.model.load_checkpoint_scalars(self.scalars)

    def _compare(self, own: Signature, fresh: FreshState) -> None:
        own, saved = fresh.compared(own), fresh.compared(self.manifest.signature)
        difference = own.difference(saved)
        if difference is None:
            return
        advice = "load it into the model that saved it"
        if trained_otherwise(own, saved):
            advice += (
                ", or name in `fresh` the parameters that are trained in only one of the two, to "
                "take their weights without optimizer state"
            )
        elif updated_otherwise(own, saved):
            advice = (
                "give fully_shard() the updates that the saved model had, or take the weights alone"
                ' with fresh=["**"]'
            )
        raise CheckpointMismatchError(
            f"expected a checkpoint of this model, got {self.path}, whose tensors differ: "
            f"{difference}; {advice}"
        )

    def _allocate(self, saved: SavedExtra) -> Any:
        tensors: dict[ExtraPath, torch.Tensor] = {}
        for row in saved.tensors:
            tensors[row.path] = torch.empty(row.shape, dtype=getattr(torch, row.dtype))
            self.state[row.key] = tensors[row.path]
        return Extra(saved.values, tensors).join()
