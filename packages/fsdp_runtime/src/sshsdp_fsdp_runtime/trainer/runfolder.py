"""RunFolder: where a run keeps everything.

runs/NAME/
    config.toml         the resolved configuration
    data/               train.npy, validation.npy, corpus.json, tokenizer.json
    metrics.jsonl       a line per step and per evaluation
    checkpoints/        step-00000500, ...
    plot.png            loss and throughput
    sample.txt          what the trained model writes
    tensorboard/        events, when asked for
    trace/              rank-0.json, ..., all.json, when asked for
"""

import contextlib
import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sshsdp_fsdp_runtime.checkpoint import newest_checkpoint
from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.configfile import format_config, read_config
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.metrics import read_metrics
from sshsdp_fsdp_runtime.trainer.run_lock import locked

_STEP_PREFIX = "step-"
# What there may be before the first step is done.
_FROM_THE_START = ("config.toml", "data", "metrics.jsonl", ".metrics.jsonl.draft", "checkpoints")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path

    @property
    def data(self) -> Path:
        """Token files."""
        return self.path / "data"

    @property
    def metrics(self) -> Path:
        """Lines of JSON."""
        return self.path / "metrics.jsonl"

    @property
    def plot(self) -> Path:
        """PNG."""
        return self.path / "plot.png"

    @property
    def sample(self) -> Path:
        """Text."""
        return self.path / "sample.txt"

    @property
    def tensorboard(self) -> Path:
        """Folder of events."""
        return self.path / "tensorboard"

    def trace(self, rank: int | None) -> Path:
        """Chrome trace of a rank; None: of all."""
        return self.path / "trace" / ("all.json" if rank is None else f"rank-{rank}.json")

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after `step` steps."""
        return self.checkpoints / f"{_STEP_PREFIX}{step:08d}"

    def newest_checkpoint(self) -> Path:
        """The complete checkpoint of the highest step.

        Raises:
            InputError: when there is none.
        """
        newest = newest_checkpoint(self.checkpoints)
        if newest is None:
            raise InputError(
                f"expected a complete checkpoint in {self.checkpoints}, got none; start a new run"
                f" of another name, or remove {self.path} first"
            )
        return newest

    def has_checkpoint(self) -> bool:
        """Whether the run can go on from here."""
        return newest_checkpoint(self.checkpoints) is not None

    def is_untrained(self) -> bool:
        """Whether it holds what a run writes before its first step is done, and nothing else."""
        names = {path.name for path in self.path.iterdir()}
        saved = [path.name for path in self.checkpoints.glob("*")]
        return (
            bool(names)
            and names <= set(_FROM_THE_START)
            and all(name.startswith(f".{_STEP_PREFIX}") for name in saved)
            and not list(read_metrics(self.metrics))
        )

    def clear_untrained(self) -> None:
        """Remove what a run wrote before its first step was done."""
        for name in _FROM_THE_START:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def steps_done(self) -> int:
        """Steps that the newest complete checkpoint has behind it."""
        return int(self.newest_checkpoint().name.removeprefix(_STEP_PREFIX))

    def remove_checkpoint(self, step: int) -> None:
        """Make room for the checkpoint of `step`: a damaged one may be there."""
        if self.checkpoint(step).exists():
            shutil.rmtree(self.checkpoint(step))

    def discard_unfinished(self) -> None:
        """Remove what a run that was killed while it saved has left behind."""
        for path in self.checkpoints.glob(f".{_STEP_PREFIX}*"):
            shutil.rmtree(path)

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest `count` checkpoints."""
        for path in sorted(self.checkpoints.glob(f"{_STEP_PREFIX}*"))[:-count]:
            shutil.rmtree(path)

    def save_config(self, config: TrainConfig) -> None:
        """Write config.toml."""
        (self.path / "config.toml").write_text(format_config(config), encoding="utf-8")


def make_run_folder(
    config: TrainConfig, held: contextlib.ExitStack
) -> tuple[TrainConfig, RunFolder]:
    """A new run folder, and the configuration with its name settled.

    A folder that a run left which ended before its first step is emptied and used again.

    Args:
        config: of the run.
        held: gets the lock of the folder.

    Raises:
        InputError: when there already is a run of that name, or the name is none.
    """
    name = config.name or _unused_name(config.runs)
    parts = Path(name).parts
    if not parts or ".." in parts or Path(name).is_absolute() or "\0" in name:
        raise InputError(
            f"expected the name of a folder in {config.runs}, got {name!r}; choose a name without"
            " .. and a leading /, and with --runs the place where it is"
        )
    folder = RunFolder(config.runs / name)
    try:
        folder.path.mkdir(parents=True)
    except FileExistsError as error:
        if not folder.path.is_dir():
            raise _taken(name, folder) from error
        held.enter_context(locked(folder.path))
        if not folder.is_untrained():
            raise _taken(name, folder) from error
        folder.clear_untrained()
    except OSError as error:
        raise InputError(
            f"expected a place for the run, got {folder.path}: {error}; choose another one with"
            f" --runs"
        ) from error
    else:
        held.enter_context(locked(folder.path))
    return replace(config, name=name), folder


def open_run_folder(path: Path) -> tuple[TrainConfig, RunFolder]:
    """An existing run folder and its configuration.

    Raises:
        InputError: when `path` is not a run folder or has no complete checkpoint.
    """
    folder = RunFolder(path)
    if not (path / "config.toml").is_file():
        raise InputError(f"expected a run folder, got {path}, which has no config.toml")
    folder.newest_checkpoint()
    return read_config(path / "config.toml", TrainConfig), folder


def _taken(name: str, folder: RunFolder) -> InputError:
    way = (
        f"continue it with --resume {folder.path}"
        if folder.has_checkpoint()
        else f"remove {folder.path} first, which has no checkpoint to go on from"
    )
    return InputError(
        f"expected a new run name, got {name}, which {folder.path} has; choose another name, or"
        f" {way}"
    )


def _unused_name(runs: Path) -> str:
    stem = datetime.now().strftime("train-%Y%m%d-%H%M%S")
    name, number = stem, 1
    while (runs / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return name
