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

import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sshsdp_fsdp_runtime.checkpoint import newest_checkpoint
from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.configfile import format_config, read_config
from sshsdp_fsdp_runtime.trainer.errors import InputError

_STEP_PREFIX = "step-"


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
            )
        return newest

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


def make_run_folder(config: TrainConfig) -> tuple[TrainConfig, RunFolder]:
    """A new run folder, and the configuration with its name settled.

    Raises:
        InputError: when there already is a run of that name.
    """
    name = config.name or _unused_name(config.runs)
    folder = RunFolder(config.runs / name)
    try:
        folder.path.mkdir(parents=True)
    except FileExistsError as error:
        raise InputError(
            f"expected a new run name, got {name}, which {folder.path} has; choose another name, or"
            f" continue it with --resume {folder.path}"
        ) from error
    except OSError as error:
        raise InputError(
            f"expected a place for the run, got {folder.path}: {error}; choose another one with"
            f" --runs"
        ) from error
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


def _unused_name(runs: Path) -> str:
    stem = datetime.now().strftime("train-%Y%m%d-%H%M%S")
    name, number = stem, 1
    while (runs / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return name
