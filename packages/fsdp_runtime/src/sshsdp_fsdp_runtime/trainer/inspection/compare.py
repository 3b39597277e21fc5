"""The command `sshsdp compare`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import RenderableType
from rich.text import Text

from sshsdp_fsdp_runtime.checkpoint import is_checkpoint
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.inspection.differences import (
    ConfigDifference,
    StepPair,
    TensorDifference,
    config_differences,
    step_pairs,
    tensor_differences,
)
from sshsdp_fsdp_runtime.trainer.inspection.output import show, write_json
from sshsdp_fsdp_runtime.trainer.inspection.saved_tensors import Saved
from sshsdp_fsdp_runtime.trainer.planning.sections.text import table


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Show in what two runs differ: configuration, losses side by side, checkpoints bit by bit.

    Of the checkpoints those of the highest step that both runs have are compared. Two checkpoints
    may be given instead of runs. The exit status is 0 where nothing differs and 1 where something
    does, as with diff.
    """

    first: Annotated[Path, tyro.conf.Positional]
    """Run folder, or checkpoint."""
    second: Annotated[Path, tyro.conf.Positional]
    """The other."""
    tolerance: float = 0.0
    """Relative difference of losses, gradient norms and learning rates that is none."""
    rows: int = 12
    """Steps that are shown side by side."""
    tensors: int = 5
    """Tensors that differ, at most so many are looked for; 0: don't compare checkpoints."""
    json: str | None = None
    """Write it there as JSON, with every step, instead of showing tables; - for standard output."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found.

    Attributes:
        config: keys that differ.
        steps: that both have reported.
        first_step: the first whose numbers differ, None: none does.
        numbers: which ones, at that step.
        checkpoints: the two that were compared, if any were.
        tensors: the first ones that differ.
    """

    config: list[ConfigDifference]
    steps: list[StepPair]
    first_step: int | None
    numbers: list[str]
    checkpoints: tuple[str, str] | None
    tensors: list[TensorDifference]

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not self.config and self.first_step is None and not self.tensors


def compare(arguments: Sequence[str]) -> int:
    """`sshsdp compare`; the exit status.

    Args:
        arguments: after the command's name.

    Raises:
        InputError: what the user can mend.
    """
    command = tyro.cli(CompareCommand, prog="sshsdp compare", args=list(arguments))
    for name, least in (("tolerance", 0), ("rows", 1), ("tensors", 0)):
        if not getattr(command, name) >= least:
            raise InputError(f"expected --{name} >= {least}, got {getattr(command, name)}")
    found = _compare(command)
    if command.json is not None:
        write_json({**asdict(found), "same": found.same}, command.json)
    else:
        show(_tables(found, command))
    return 0 if found.same else 1


def _compare(command: CompareCommand) -> Comparison:
    first, second = command.first, command.second
    if _is_saved(first) != _is_saved(second):
        raise InputError(
            f"expected two runs or two checkpoints, got one of each: {first} and {second}"
        )
    if _is_saved(first):
        pair: tuple[Path, Path] | None = first, second
        config, steps = [], []
    else:
        config, steps = config_differences(first, second), step_pairs(first, second)
        pair = _common_checkpoints(first, second) if command.tensors else None
    differing = ((p.step, p.differs(command.tolerance)) for p in steps)
    step, numbers = next((row for row in differing if row[1]), (None, []))
    tensors: list[TensorDifference] = []
    if pair is not None:
        one, two = (Saved.open(path, whole=True) for path in pair)
        found = tensor_differences(one, two)
        tensors = list(islice(found, command.tensors))
    names = None if pair is None else (str(pair[0]), str(pair[1]))
    return Comparison(config, steps, step, numbers, names, tensors)


def _is_saved(path: Path) -> bool:
    return path.is_dir() and is_checkpoint(path)


def _common_checkpoints(first: Path, second: Path) -> tuple[Path, Path] | None:
    """The checkpoints of the highest step that both runs have; they are named by it."""
    one, two = first / "checkpoints", second / "checkpoints"
    names = {path.name for path in one.glob("step-*")} & {path.name for path in two.glob("step-*")}
    return (one / max(names), two / max(names)) if names else None


def _tables(found: Comparison, command: CompareCommand) -> Iterator[RenderableType]:
    yield Text.assemble(("first  ", "bold"), str(command.first))
    yield Text.assemble(("second ", "bold"), str(command.second))
    yield Text()
    if found.config:
        result = table("configuration", "=key", "first", "second")
        for row in found.config:
            result.add_row(row.key, _value(row.first), _value(row.second))
        yield result
    if found.steps:
        yield _steps(found, command)
    yield from (Text(line) for line in _verdict(found))


def _steps(found: Comparison, command: CompareCommand) -> RenderableType:
    title = f"{len(found.steps):,} common steps"
    result = table(title, ">step", ">loss", ">second", ">grad_norm", ">second", ">val_loss", ">")
    for pair in _some(found, command.rows):
        cells = [f"{pair.step:,}"]
        for name in ("loss", "grad_norm", "val_loss"):
            cells += [_number(pair.first.get(name)), _number(pair.second.get(name))]
        result.add_row(*cells, style="bold" if pair.step == found.first_step else None)
    return result


def _some(found: Comparison, count: int) -> list[StepPair]:
    """So many steps, spread evenly, the first that differs and the last among them."""
    last = len(found.steps) - 1
    chosen = {round(index * last / max(1, count - 1)) for index in range(count)}
    return [
        pair
        for index, pair in enumerate(found.steps)
        if index in chosen or pair.step == found.first_step
    ]


def _verdict(found: Comparison) -> Iterator[str]:
    if not found.config and found.steps:
        yield "configuration: the same"
    if found.first_step is not None:
        yield f"first differing step: {found.first_step:,} ({', '.join(found.numbers)})"
    elif found.steps:
        yield "numbers of all common steps: the same"
    if found.checkpoints is not None:
        names = dict.fromkeys(Path(path).name for path in found.checkpoints)
        name = " and ".join(names)
        if not found.tensors:
            yield f"checkpoints {name}: the same, bit for bit"
        for index, row in enumerate(found.tensors):
            noun = "first differing tensor" if index == 0 else "then"
            yield f"checkpoints {name}: {noun} {row.key}: {row.what}"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.6g}"


def _value(value: Any) -> str:
    return "-" if value is None else str(value)
