"""The tensors that a checkpoint holds, ours or another program's, without a model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from sshsdp_fsdp_runtime.checkpoint import CheckpointError, Manifest, is_checkpoint
from sshsdp_fsdp_runtime.checkpoint.errors import reason
from sshsdp_fsdp_runtime.checkpoint.reading import saved_items, whole_tensors
from sshsdp_fsdp_runtime.trainer.errors import InputError

_STATE = "optimizer.state."
_NO_STATE = ("extra/", "per_rank/")


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor of a checkpoint.

    Attributes:
        key: in the checkpoint.
        shape: logical.
        dtype: of the saved elements, such as ``float32``.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return math.prod(self.shape) * dtype.itemsize

    @property
    def kind(self) -> str:
        """``weights``, the name of a field of optimizer state, or ``values`` of the caller."""
        if self.key.startswith(_STATE):
            return self.key.rpartition(".")[2]
        return "values" if self.key.startswith(_NO_STATE) else "weights"

    @property
    def name(self) -> str:
        """Of the parameter or buffer."""
        if self.key.startswith(_STATE):
            return self.key.removeprefix(_STATE).rpartition(".")[0]
        return self.key.removeprefix("model.")


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint.

    Attributes:
        path: its folder.
        manifest: None where another program saved it.
        tensors: by key.
    """

    path: Path
    manifest: Manifest | None
    tensors: Mapping[str, SavedTensor]

    @classmethod
    def open(cls, path: Path, *, whole: bool = False) -> "Saved":
        """Read what describes the checkpoint; no values.

        Args:
            path: its folder.
            whole: refuse one of ours whose files are not all there, or of another length.

        Raises:
            InputError: there is none, or its description can't be read.
        """
        if not path.is_dir() or not is_checkpoint(path):
            raise InputError(f"expected a folder with a checkpoint, got {path}; check the path")
        try:
            ours = (path / "manifest.json").exists()
            manifest = Manifest.read(path) if ours else None
            if manifest is not None and whole:
                manifest.check_files(path)
            rows = {
                key: SavedTensor(key, tuple(item.size), _name(item.properties.dtype))
                for key, item in saved_items(path).items()
                if isinstance(item, TensorStorageMetadata)
            }
        except CheckpointError as error:
            raise InputError(str(error)) from error
        except Exception as error:  # unpickling of a damaged file raises anything
            raise InputError(
                f"expected a readable checkpoint, got {path}, whose .metadata can't be read "
                f"({type(error).__name__}: {error}); copy the folder again or take an earlier one"
            ) from error
        return cls(path, manifest, rows)

    def damage(self, *, contents: bool) -> str | None:
        """What is wrong with the files, by length and, if asked, by checksum; None: nothing."""
        try:
            if self.manifest is not None:
                self.manifest.check_files(self.path)
                if contents:
                    self.manifest.check_contents(self.path)
        except CheckpointError as error:
            return str(error)
        return None

    def values(self, keys: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors, a few at a time.

        Raises:
            InputError: they can't be read.
        """
        try:
            yield from whole_tensors(self.path, keys)
        # torch derives what it raises about reading from BaseException.
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
                raise
            raise InputError(
                f"expected readable values in {self.path}, got: {reason(error)}; copy the folder "
                "again or take an earlier one"
            ) from error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
