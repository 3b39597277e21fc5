"""TraceWindow: the steps that a trace records."""

import re
from dataclasses import dataclass
from typing import Self

from sshsdp_fsdp_runtime.trainer.errors import InputError

_PATTERN = re.compile(r"(\d+)(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """Steps from `first` to `last`, both included; the first step of a run is 1."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str, steps: int) -> Self:
        """The window that STEP or STEP:STEPS means in a run of `steps` steps.

        Raises:
            InputError: it means nothing, or steps that the run doesn't have.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise InputError(
                f"expected debug.trace as STEP or STEP:STEPS, got {text!r}; use 3:2 for two steps"
                " from the third on"
            )
        first, count = int(match[1]), int(match[2] or 1)
        if not (first >= 1 and count >= 1 and first + count - 1 <= steps):
            raise InputError(
                f"expected debug.trace within the steps 1 to {steps} of the run, got {text!r}"
                f"; use {max(steps - 1, 1)}"
            )
        return cls(first, first + count - 1)
