"""Folders of checkpoints: how one appears at once, and which is the newest."""

import os
import shutil
from pathlib import Path

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.manifest import FILE_NAME, Manifest

_UNFINISHED = ".unfinished"


def staging_folder(path: Path) -> Path:
    """The sibling that a checkpoint is written to before it is renamed to `path`."""
    return path.with_name(f".{path.name}{_UNFINISHED}")


def open_staging(path: Path) -> None:
    """Make the empty staging folder of `path`, without what an interrupted save left in it.

    Raises:
        CheckpointError: something other than an empty folder is at `path`.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise CheckpointError(
            f"expected a path where nothing is yet, got {path}, which exists; "
            "choose another or delete it first"
        )
    staging = staging_folder(path)
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)


def commit(path: Path) -> None:
    """Let the staged checkpoint appear at `path`, whole, also after a power failure."""
    staging = staging_folder(path)
    _sync(staging)
    os.rename(staging, path)
    _sync(path.parent)


def files_of(folder: Path) -> dict[str, int]:
    """Name -> bytes of the files in a folder, the manifest aside."""
    files = sorted(file for file in folder.iterdir() if file.name != FILE_NAME)
    return {file.name: file.stat().st_size for file in files}


def newest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The complete checkpoint directly in `folder` with the highest step, then the latest; or None.

    Interrupted and damaged ones are passed over, and so is whatever else the folder holds.
    """
    found: list[tuple[int, float, str, Path]] = []
    root = Path(folder)
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and not path.name.endswith(_UNFINISHED):
            try:
                manifest = Manifest.read(path)
                manifest.check_files(path)
            except CheckpointError:
                continue
            found.append((manifest.step, manifest.saved_at, path.name, path))
    return max(found)[-1] if found else None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
