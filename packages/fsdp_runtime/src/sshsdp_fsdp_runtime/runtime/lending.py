"""Full main weights in the user's hands, and back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.runtime.pieces import full_value, store
from sshsdp_fsdp_runtime.runtime.state import RuntimeState


@contextmanager
def lent(
    state: RuntimeState, patterns: Sequence[str], *, write: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """See `ShardedModule.unsharded`. Collective, on entry and on exit."""
    chosen = [
        handle
        for handle in state.handles
        if not patterns or any(matches(p, a) for p in patterns for a in handle.spec.aliases)
    ]
    for pattern in patterns:
        if not any(matches(pattern, alias) for h in chosen for alias in h.spec.aliases):
            raise ValueError(f"expected a pattern that names parameters, got {pattern!r}")
    state.update.check("unsharded()")
    state.transport.barrier()
    full = {}
    for handle in chosen:
        value = full_value(handle, state.buffers, state.transport)
        assert value is not None
        full.update(dict.fromkeys(handle.spec.aliases, value))
    state.update.lent = write
    try:
        yield full
    finally:
        state.update.lent = False
    if write:
        state.update.begin()
        for handle in chosen:
            store(handle, full[handle.spec.name].view(-1), state.transport.rank)
        state.update.end()
