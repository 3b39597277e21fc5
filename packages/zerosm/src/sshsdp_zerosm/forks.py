"""Processes that were forked after they had connected: the transport is their parent's."""

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """What a forked process has a copy of, though it belongs to its parent."""

    def leave_to_parent(self) -> None:
        """From now on refuse every use; called in the new process."""


_known: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def watch_forks(inherited: Inherited) -> None:
    """Have it told in every process that is forked off this one, as long as it lives."""
    _known.add(inherited)


def _after_fork() -> None:
    for inherited in list(_known):
        inherited.leave_to_parent()


# By os.fork() and multiprocessing; subprocesses that run another program don't get here.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
