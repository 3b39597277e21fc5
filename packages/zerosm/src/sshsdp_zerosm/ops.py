"""The vocabulary of schedules: seven frozen operations."""

from dataclasses import dataclass
from typing import TypeAlias

import torch

from sshsdp_zerosm.region import Region

PAYLOAD_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
ACCUMULATOR_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Put:
    """Copy own bytes into a peer's memory."""

    source: Region
    target: Region

    def __post_init__(self) -> None:
        _check_copy(self.source, self.target)

    def __str__(self) -> str:
        return f"put {self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Pull:
    """Copy a peer's (or own) bytes into own memory."""

    source: Region
    target: Region

    def __post_init__(self) -> None:
        _check_copy(self.source, self.target)

    def __str__(self) -> str:
        return f"pull {self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Fence:
    """Wait until this rank's earlier Puts that read `source` have been sent.

    Then `source` may be overwritten. It has not necessarily arrived: that is what the receiver's
    Wait for a Signal after the Put says.
    """

    source: Region

    def __str__(self) -> str:
        return f"fence {self.source}"


@dataclass(frozen=True, slots=True)
class Signal:
    """Raise the own counter of a channel by one; the ranks in `to` may wait for it."""

    channel: str
    to: tuple[int, ...]

    def __str__(self) -> str:
        return f"signal {self.channel} to {','.join(map(str, self.to))}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for one more count of `source`'s channel than this rank has consumed so far.

    The first `credit` waits of this rank on that channel of that source pass at once.
    """

    source: int
    channel: str
    credit: int = 0

    def __post_init__(self) -> None:
        if self.credit < 0:
            raise ValueError(f"expected credit >= 0, got {self.credit}")

    def __str__(self) -> str:
        credit = f" credit {self.credit}" if self.credit else ""
        return f"wait {self.channel} of {self.source}{credit}"


@dataclass(frozen=True, slots=True)
class WaitGeneration:
    """Wait until `source` has published at least this rank's own generation."""

    source: int

    def __str__(self) -> str:
        return f"wait generation of {self.source}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """``target = (target if accumulate else 0) + scale * (((s0 + s1) + s2) + ...)``.

    The sum runs in `accumulator`, in the order of `sources`; the scaled sum is rounded once
    before it is added. `accumulate` is an argument of ``Program.run``.

    Attributes:
        sources: equally long regions of `dtype` elements.
        target: own region of as many `target_dtype` elements. It may be one of the sources, but
            may not overlap one otherwise.
        dtype: of the sources: float32, float64 or bfloat16.
        accumulator: float32 or float64, not narrower than `dtype`.
        scale: factor on the sum.
        target_dtype: of the target; None means `accumulator`.
        overwrite: never accumulate, whatever the run says: for partial sums, and sums in place.
    """

    sources: tuple[Region, ...]
    target: Region
    dtype: torch.dtype
    accumulator: torch.dtype
    scale: float = 1.0
    target_dtype: torch.dtype | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_payload(self.dtype, self.accumulator)
        if self.stored not in PAYLOAD_DTYPES:
            raise ValueError(f"expected a target of {_names(PAYLOAD_DTYPES)}, got {self.stored}")
        if not self.sources:
            raise ValueError("expected at least one source to reduce, got none")
        numel = self.target.numel(self.stored)
        for source in self.sources:
            if source.numel(self.dtype) != numel:
                raise ValueError(
                    f"expected sources of {numel} elements like the target {self.target} "
                    f"({self.stored}), got {source} ({self.dtype})"
                )
            if source.overlaps(self.target) and not self._in_place(source):
                raise ValueError(
                    f"expected a target that is a source or apart from it, "
                    f"got target {self.target} across source {source}"
                )

    def __str__(self) -> str:
        sources = " + ".join(map(str, self.sources))
        kind = "overwrite" if self.overwrite else "reduce"
        return (
            f"{kind} {self.target} ({_name(self.stored)}) = {self.scale!r} * ({sources}) "
            f"({_name(self.dtype)} summed in {_name(self.accumulator)})"
        )

    @property
    def stored(self) -> torch.dtype:
        """The dtype of the target."""
        return self.accumulator if self.target_dtype is None else self.target_dtype

    def _in_place(self, source: Region) -> bool:
        return source == self.target and self.dtype == self.stored


Op: TypeAlias = Put | Pull | Fence | Signal | Wait | WaitGeneration | Reduce


def check_payload(dtype: torch.dtype, accumulator: torch.dtype) -> None:
    """ValueError unless `dtype` can be reduced, and `accumulator` can hold its sums."""
    if dtype not in PAYLOAD_DTYPES:
        raise ValueError(
            f"expected a payload of {_names(PAYLOAD_DTYPES)}, got {dtype}: "
            f"cast it before it is reduced"
        )
    if accumulator not in ACCUMULATOR_DTYPES or accumulator.itemsize < dtype.itemsize:
        raise ValueError(
            f"expected an accumulator of {_names(ACCUMULATOR_DTYPES)} not narrower than {dtype}, "
            f"got {accumulator}"
        )


def _check_copy(source: Region, target: Region) -> None:
    if source.nbytes != target.nbytes:
        raise ValueError(f"expected equally long regions, got {source} and {target}")
    if source.overlaps(target):
        raise ValueError(f"expected regions apart from each other, got {source} and {target}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(map(_name, dtypes))
