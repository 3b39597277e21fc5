"""RunFolder: where a run keeps everything.

    runs/NAME/
        config.toml         the resolved configuration
        data/               train.npy, validation.npy, corpus.json, tokenizer.json
        metrics.jsonl       a line per step and per evaluation
        checkpoints/        step-00000500, ...
        plot.png            loss and throughput
        sample.txt          what the trained model writes
        tensorboard/        events, when asked for
"""

import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from .config import TrainConfig
from .configfile import format_config, read_config
from .errors import InputError

_STEP_PREFIX = "step-"
_PARTIAL_SUFFIX = ".partial"


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

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after `step` steps."""
        return self.path / "checkpoints" / f"{_STEP_PREFIX}{step:08d}"

    def partial_checkpoint(self, step: int) -> Path:
        """Where that checkpoint is written, until it is complete and gets its name."""
        final = self.checkpoint(step)
        return final.with_name(final.name + _PARTIAL_SUFFIX)

    def complete_checkpoints(self) -> list[int]:
        """Steps that have a complete checkpoint, ascending."""
        names = [path.name for path in (self.path / "checkpoints").glob(f"{_STEP_PREFIX}*")]
        numbers = [name.removeprefix(_STEP_PREFIX) for name in names]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest `count` complete checkpoints, and partial ones."""
        for step in self.complete_checkpoints()[:-count]:
            shutil.rmtree(self.checkpoint(step))
        for path in (self.path / "checkpoints").glob(f"*{_PARTIAL_SUFFIX}"):
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
    return replace(config, name=name), folder


def open_run_folder(path: Path) -> tuple[TrainConfig, RunFolder]:
    """An existing run folder and its configuration.

    Raises:
        InputError: when `path` is not a run folder or has no complete checkpoint.
    """
    folder = RunFolder(path)
    if not (path / "config.toml").is_file():
        raise InputError(f"expected a run folder, got {path}, which has no config.toml")
    if not folder.complete_checkpoints():
        raise InputError(
            f"expected a complete checkpoint in {path / 'checkpoints'}, got none; start a new run"
        )
    return read_config(path / "config.toml", TrainConfig), folder


def _unused_name(runs: Path) -> str:
    stem = datetime.now().strftime("train-%Y%m%d-%H%M%S")
    name, number = stem, 1
    while (runs / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return name
