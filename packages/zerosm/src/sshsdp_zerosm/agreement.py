"""Checks that end in the same answer on every rank."""

import json
from collections.abc import Collection, Sequence

from sshsdp_zerosm.arena import padded
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.limits import available_bytes
from sshsdp_zerosm.mailbox import Kind, Mailbox


def agree_on_arena(
    mailbox: Mailbox,
    name: str,
    nbytes: int,
    shared: bool,
    hosts: Sequence[object],
    creators: Collection[int],
) -> None:
    """TransportError unless all ranks want the same arena, and there is memory for it.

    Args:
        mailbox: of this rank.
        name: of the arena.
        nbytes: of one memory.
        shared: one memory for several ranks.
        hosts: the machine of every rank; ranks of one machine share what it has.
        creators: the ranks that each make a memory.
    """
    request = json.dumps([name, nbytes, shared, available_bytes()]).encode()
    requests = [json.loads(answer) for answer in mailbox.post(Kind.ARENA, request).wait()]
    if any(wanted[:3] != requests[0][:3] for wanted in requests):
        listed = ", ".join(
            f"rank {rank}: {wanted[0]!r} of {wanted[1]} bytes{', shared' if wanted[2] else ''}"
            for rank, wanted in enumerate(requests)
        )
        raise TransportError(f"expected the same arena on all ranks, got {listed}")
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, at in enumerate(hosts) if at == host]
        total = padded(nbytes) * len(set(ranks) & set(creators))
        available = min(requests[rank][3] for rank in ranks)
        if total > available:
            raise TransportError(
                f"arena {name!r}: expected at most {available} bytes, what this machine and its "
                f"cgroup have available, got {total} for ranks {', '.join(map(str, ranks))} "
                f"together: make the arena smaller or use fewer ranks"
            )


def agree_on_success(mailbox: Mailbox, what: str, errors: Sequence[str]) -> None:
    """TransportError on every rank if any rank reports an error about `what`."""
    answers = mailbox.post(Kind.HANDOVER, "; ".join(errors).encode()).wait()
    failed = [f"rank {rank}: {answer.decode()}" for rank, answer in enumerate(answers) if answer]
    if failed:
        raise TransportError(f"{what}: expected every rank to map it, got {', '.join(failed)}")
