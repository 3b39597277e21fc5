"""Folders of checkpoints: how one appears at once, and which is the newest."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError, reason
from sshsdp_fsdp_runtime.checkpoint.manifest import FILE_NAME, METADATA, Manifest

_UNFINISHED = ".unfinished"
_log = logging.getLogger(__name__)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """What a caller gave as a path.

    Raises:
        CheckpointError: it is none.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        got = repr(path) if isinstance(path, str) else type(path).__name__
        raise CheckpointError(
            f"expected the path of a checkpoint, got {got}; give a str or a Path, as in "
            '"checkpoints/step-100"'
        )
    return Path(path)


@contextmanager
def making(path: Path) -> Iterator[None]:
    """Around what makes files at `path`.

    Raises:
        CheckpointError: the system does not let it.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"expected a path where files can be made, got {path}: {reason(error)}; choose another "
            "one, or make its folder writable"
        ) from error


def staging_folder(path: Path) -> Path:
    """The sibling that a checkpoint is written to before it is renamed to `path`."""
    return path.with_name(f".{path.name}{_UNFINISHED}")


def open_staging(path: Path) -> None:
    """Make the empty staging folder of `path`, without what an interrupted save left in it.

    Raises:
        CheckpointError: something other than an empty folder is at `path`, or it can't be made.
    """
    with making(path):
        _make_staging(path)


def _make_staging(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise CheckpointError(
            f"expected a path where nothing is yet, got {path}, which exists; "
            "choose another or delete it first"
        )
    staging = staging_folder(path)
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)


def discard_staging(path: Path) -> None:
    """Remove what was written for `path`, as far as that works."""
    shutil.rmtree(staging_folder(path), ignore_errors=True)


def commit(path: Path) -> None:
    """Let the staged checkpoint appear at `path`, whole, also after a power failure."""
    staging = staging_folder(path)
    sync_folder(staging)
    os.rename(staging, path)
    sync_folder(path.parent)


def newest_checkpoint(folder: str | os.PathLike[str], *, contents: bool = False) -> Path | None:
    """The complete checkpoint directly in `folder` with the highest step, then the latest; or None.

    Damaged ones are passed over, with a warning in the log that says why. Unfinished saves, and
    whatever else the folder holds, are no checkpoints.

    Args:
        folder: may be absent.
        contents: also compare checksums, from the newest checkpoint down until one is whole; reads
            every byte of it.
    """
    found: list[tuple[int, float, str, Path, Manifest]] = []
    root = Path(folder)
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and not path.name.endswith(_UNFINISHED):
            try:
                manifest = Manifest.read(path)
                manifest.check_files(path)
            except CheckpointError as error:
                _pass_over(path, error)
                continue
            found.append((manifest.step, manifest.saved_at, path.name, path, manifest))
    for *_, path, manifest in sorted(found, key=lambda row: row[:3], reverse=True):
        try:
            if contents:
                manifest.check_contents(path)
        except CheckpointError as error:
            _pass_over(path, error)
            continue
        return path
    return None


def is_checkpoint(path: Path) -> bool:
    """Whether a folder holds a checkpoint, of whatever state."""
    return any((path / name).exists() for name in (FILE_NAME, METADATA))


def _pass_over(path: Path, error: CheckpointError) -> None:
    if is_checkpoint(path):
        _log.warning("checkpoint passed over: %s", error)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
