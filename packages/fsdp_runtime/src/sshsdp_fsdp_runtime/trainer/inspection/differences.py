"""In what two runs differ, as data."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.inspection.saved_tensors import Saved
from sshsdp_fsdp_runtime.trainer.metrics import read_metrics

_OWN = ("name", "runs")  # of every run
_NUMBERS = ("loss", "grad_norm", "lr")


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """A key of config.toml; None where a run has it not."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class StepPair:
    """What both runs measured at a step, by name: loss, grad_norm, lr, val_loss."""

    step: int
    first: Mapping[str, float | None]
    second: Mapping[str, float | None]

    def differs(self, tolerance: float) -> list[str]:
        """Names of the numbers that differ by more than `tolerance`, relative to the first."""
        return [
            name
            for name, value in self.first.items()
            if not _near(value, self.second.get(name), tolerance)
        ]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that differs.

    Attributes:
        key: in the checkpoints.
        what: for people: which shapes, or by how much.
        largest: absolute difference of values; None where there is none to be had.
    """

    key: str
    what: str
    largest: float | None = None


def config_differences(first: Path, second: Path) -> list[ConfigDifference]:
    """Keys whose values differ, those that every run has its own aside.

    Raises:
        InputError: a run has no readable config.toml.
    """
    one, two = _config(first), _config(second)
    return [
        ConfigDifference(key, one.get(key), two.get(key))
        for key in dict.fromkeys((*one, *two))
        if key not in _OWN and one.get(key) != two.get(key)
    ]


def step_pairs(first: Path, second: Path) -> list[StepPair]:
    """The steps that both runs have reported.

    Raises:
        InputError: a run's metrics are damaged.
    """
    one, two = _numbers(first), _numbers(second)
    return [StepPair(step, one[step], two[step]) for step in sorted(one) if step in two]


def tensor_differences(first: Saved, second: Saved) -> Iterator[TensorDifference]:
    """Tensors of the model and the optimizer that are not the same bit for bit, in their order.

    Raises:
        InputError: values can't be read.
    """
    keys = []
    for key, tensor in first.tensors.items():
        other = second.tensors.get(key)
        if tensor.kind == "values":
            continue
        if other is None:
            yield TensorDifference(key, "only in the first")
        elif (other.shape, other.dtype) != (tensor.shape, tensor.dtype):
            yield TensorDifference(
                key,
                f"{tensor.dtype}{list(tensor.shape)} and {other.dtype}{list(other.shape)}",
            )
        else:
            keys.append(key)
    for key, tensor in second.tensors.items():
        if tensor.kind != "values" and key not in first.tensors:
            yield TensorDifference(key, "only in the second")
    for (key, one), (_, two) in zip(first.values(keys), second.values(keys), strict=True):
        if not _same_bits(one, two):
            gap = (one.to(torch.float64) - two.to(torch.float64)).abs()
            largest = float(gap[gap.isfinite()].max()) if gap.isfinite().any() else float("nan")
            count = int((one != two).sum())
            yield TensorDifference(
                key, f"{count:,} of {one.numel():,} elements, by up to {largest:.3g}", largest
            )


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), two.reshape(-1).view(torch.uint8))


def _near(first: float | None, second: float | None, tolerance: float) -> bool:
    if first is None or second is None:
        return first is second
    return abs(first - second) <= tolerance * abs(first)


def _config(run: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"expected a run folder with a config.toml, got {run}: {error}; check the path"
        ) from error
    return dict(_flat(table, ""))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _numbers(run: Path) -> dict[int, dict[str, float | None]]:
    steps: dict[int, dict[str, float | None]] = {}
    for row in read_metrics(run / "metrics.jsonl"):
        numbers = steps.setdefault(row["step"], {})
        names = _NUMBERS if row["kind"] == "step" else ("val_loss",)
        numbers.update({name: row.get(name) for name in names})
    return steps
