"""How a rank gets its transport."""

from typing import Any

from sshsdp_zerosm.loopback import Loopback
from sshsdp_zerosm.transport import Transport

KINDS = ("auto", "shared_memory", "loopback")


def connect(
    rank: int, world: int, store: Any = None, *, timeout: float = 300.0, kind: str = "auto"
) -> Transport:
    """Connect this process, as one of `world` ranks, to the others. Collective.

    Args:
        rank: of this process, ``0 <= rank < world``.
        world: number of ranks, all on one Linux host.
        store: a torch.distributed store that all ranks share (TCPStore, FileStore, or a PrefixStore
            of one). Used in here and kept as the transport's `store`; a world of one needs none.
        timeout: seconds that any wait may take, here and later.
        kind: "shared_memory"; "loopback" (a world of one only); "auto" is loopback in a world of
            one and shared memory else.

    Raises:
        ValueError: arguments that don't fit together.
        RuntimeError: shared memory on a system that lacks what it needs.
        TransportError: ranks on different hosts, or a rank that doesn't come in time.
    """
    if not 0 <= rank < world:
        raise ValueError(f"expected 0 <= rank < world, got rank {rank} and world {world}")
    if timeout <= 0:
        raise ValueError(f"expected a timeout above 0 seconds, got {timeout}")
    if kind not in KINDS:
        raise ValueError(f"expected kind to be one of {', '.join(KINDS)}, got {kind!r}")
    if kind == "loopback" and world > 1:
        raise ValueError(
            f"expected world 1 for kind 'loopback', got {world}: use Loopback(world) to play all "
            f"ranks in one process"
        )
    if world == 1 and kind != "shared_memory":
        return Loopback(1, timeout).transports[0]
    if world > 1 and store is None:
        raise ValueError(f"expected a store to find the other {world - 1} ranks, got None")
    # Imported here because it needs Linux, and planning doesn't.
    from sshsdp_zerosm.shared_memory import SharedMemoryTransport

    transport = SharedMemoryTransport(rank, world, store, timeout)
    transport.store = store
    return transport
