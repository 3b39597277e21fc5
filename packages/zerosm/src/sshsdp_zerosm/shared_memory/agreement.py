"""Checks that end in the same answer on every rank."""

import json
from collections.abc import Sequence

from sshsdp_zerosm.arena import padded
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.mailbox import Kind, Mailbox
from sshsdp_zerosm.shared_memory.limits import available_bytes


def agree_on_arena(mailbox: Mailbox, name: str, nbytes: int, shared: bool) -> None:
    """TransportError unless all ranks want the same arena, and there is memory for it."""
    request = json.dumps([name, nbytes, shared, available_bytes()]).encode()
    requests = [json.loads(answer) for answer in mailbox.post(Kind.ARENA, request).wait()]
    if any(wanted[:3] != requests[0][:3] for wanted in requests):
        listed = ", ".join(
            f"rank {rank}: {wanted[0]!r} of {wanted[1]} bytes{', shared' if wanted[2] else ''}"
            for rank, wanted in enumerate(requests)
        )
        raise TransportError(f"expected the same arena on all ranks, got {listed}")
    total = padded(nbytes) * (1 if shared else len(requests))
    available = min(wanted[3] for wanted in requests)
    if total > available:
        raise TransportError(
            f"arena {name!r}: expected at most {available} bytes, what this machine and its cgroup "
            f"have available, got {total} for all ranks together: make the arena smaller or use "
            f"fewer ranks"
        )


def agree_on_success(mailbox: Mailbox, what: str, errors: Sequence[str]) -> None:
    """TransportError on every rank if any rank reports an error about `what`."""
    answers = mailbox.post(Kind.HANDOVER, "; ".join(errors).encode()).wait()
    failed = [f"rank {rank}: {answer.decode()}" for rank, answer in enumerate(answers) if answer]
    if failed:
        raise TransportError(f"{what}: expected every rank to map it, got {', '.join(failed)}")
