"""The file that makes a folder a checkpoint: written last, it says what the folder holds."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError, IncompleteCheckpointError, reason
from sshsdp_fsdp_runtime.checkpoint.integrity import FileFacts
from sshsdp_fsdp_runtime.checkpoint.signature import Signature

FILE_NAME = "manifest.json"
METADATA = ".metadata"  # torch's name of its table of contents
FORMAT = "sshsdp-checkpoint"
VERSION = 2  # 1 (release 0.1.0) had lengths of files without checksums, and no layout


@dataclass(frozen=True, slots=True)
class ExtraTensor:
    """A tensor of the caller's own values: where it belongs and what to allocate for it."""

    key: str
    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class SavedExtra:
    """JSON values with null where a tensor belongs, and those tensors."""

    values: Any = None
    tensors: tuple[ExtraTensor, ...] = ()

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "SavedExtra":
        """Inverse of dataclasses.asdict."""
        tensors = (
            ExtraTensor(t["key"], tuple(t["path"]), tuple(t["shape"]), t["dtype"])
            for t in row["tensors"]
        )
        return cls(row["values"], tuple(tensors))


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of ``manifest.json``.

    Attributes:
        world: number of ranks that saved.
        step: training step if the caller gave one, else -1; orders the checkpoints of a folder.
        saved_at: seconds since 1970, orders checkpoints of the same step.
        signature: tensors of the model and its optimizer.
        scalars: of `Checkpointable.checkpoint_scalars`.
        extra: the caller's values.
        per_rank: the caller's values per rank, one for each of `world` ranks, or none at all.
        files: name -> what every other file of the folder has to be.
        layout: of `Checkpointable.checkpoint_layout`: for people, no part of what is loaded.
        version: of the format that the file was written in.
        content: the file's bytes, where it was read: the same for no other save.
    """

    world: int
    step: int
    saved_at: float
    signature: Signature
    scalars: Any
    extra: SavedExtra
    per_rank: tuple[SavedExtra, ...] = ()
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION
    content: bytes = field(default=b"", repr=False, compare=False)

    def write(self, folder: Path) -> None:
        """Write the file, forced to the disk."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "world": self.world,
            "step": self.step,
            "saved_at": self.saved_at,
            "signature": self.signature.to_json(),
            "scalars": self.scalars,
            "extra": asdict(self.extra),
            "per_rank": [asdict(extra) for extra in self.per_rank],
            "files": {name: asdict(facts) for name, facts in self.files.items()},
            "layout": dict(self.layout),
        }
        with (folder / FILE_NAME).open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the file.

        Raises:
            IncompleteCheckpointError: there is none: the save did not finish.
            CheckpointError: the folder is not ours or of a newer format.
        """
        if not folder.is_dir():
            raise CheckpointError(
                f"expected a checkpoint folder, got {folder}, which is not a folder; check the path"
            )
        try:
            text = (folder / FILE_NAME).read_bytes()
            content = json.loads(text.decode("utf-8"))
        except (FileNotFoundError, ValueError):
            raise IncompleteCheckpointError(
                f"expected a complete checkpoint, got {folder}, which is incomplete (no readable "
                f"{FILE_NAME}: its save did not finish); load an earlier one and delete this one"
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"expected a checkpoint that can be read, got {folder}: {error}; check who may "
                "read it"
            ) from error
        version = _check_format(folder, content)
        try:
            return cls._of(_upgraded(content, version), version, text)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise IncompleteCheckpointError(
                f"expected the {FILE_NAME} that a save wrote in {folder}, got one that is damaged "
                f"({reason(error)}); copy the folder again or load an earlier one"
            ) from error

    @classmethod
    def _of(cls, content: Mapping[str, Any], version: int, text: bytes) -> "Manifest":
        return cls(
            world=content["world"],
            step=content["step"],
            saved_at=content["saved_at"],
            signature=Signature.from_json(content["signature"]),
            scalars=content["scalars"],
            extra=SavedExtra.from_json(content["extra"]),
            per_rank=tuple(SavedExtra.from_json(row) for row in content["per_rank"]),
            files={name: FileFacts.from_json(row) for name, row in content["files"].items()},
            layout=content["layout"],
            version=version,
            content=text,
        )

    def check_files(self, folder: Path) -> None:
        """Compare the folder with the list of its files and their lengths.

        The table of contents, which is small, is compared by its checksum: torch trusts it.

        Raises:
            IncompleteCheckpointError: a file is missing or cut off.
        """
        for name, facts in self.files.items():
            facts.check_length(folder / name)
        if METADATA in self.files:
            self.files[METADATA].check_content(folder / METADATA)

    def check_contents(self, folder: Path, part: int = 0, parts: int = 1) -> None:
        """Compare checksums; reads every file whole, or one of `parts` shares of the files.

        Raises:
            IncompleteCheckpointError: a file does not hold what was written.
        """
        for name in sorted(self.files)[part::parts]:
            self.files[name].check_content(folder / name)


def _check_format(folder: Path, content: object) -> int:
    found = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or found != FORMAT:
        raise CheckpointError(
            f"expected format {FORMAT!r} in {folder / FILE_NAME}, got {found!r}; "
            "this folder was written by something else"
        )
    version = content.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(
            f"expected format version {VERSION} or older in {folder}, got {version}; "
            "load it with the newer release that wrote it"
        )
    return int(version)


def _upgraded(content: dict[str, Any], version: int) -> dict[str, Any]:
    """What a file of an older version means today."""
    if version == 1:
        lengths = content["files"].items()
        files = {name: {"nbytes": nbytes, "crc32": None} for name, nbytes in lengths}
        content = {**content, "files": files, "layout": {}}
    return content
