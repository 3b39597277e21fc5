"""How a rank gets its transport."""

import contextlib
import socket
from numbers import Real
from typing import Any

from sshsdp_zerosm.card import Card
from sshsdp_zerosm.distress import Distress
from sshsdp_zerosm.forks import watch_forks
from sshsdp_zerosm.loopback import Loopback
from sshsdp_zerosm.meeting import Meeting, meet
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.transport import Transport

KINDS = ("auto", "shared_memory", "process_group", "composite", "loopback")
_LONGEST_TIMEOUT = 1_000_000  # seconds, 11 days: stores and gloo count in types that overflow


def connect(
    rank: int,
    world: int,
    store: Any = None,
    *,
    timeout: float = 300.0,
    kind: str = "auto",
    topology: Topology | None = None,
) -> Transport:
    """Connect this process, as one of `world` ranks, to the others. Collective.

    Args:
        rank: of this process, ``0 <= rank < world``.
        world: number of ranks.
        store: a torch.distributed store that all ranks share (TCPStore, FileStore, or a PrefixStore
            of one). Used in here and kept as the transport's `store`; a world of one needs none.
        timeout: seconds that any wait may take, here and later; up to 1,000,000.
        kind: "shared_memory" (all ranks on one Linux host); "process_group" (messages over gloo
            between all ranks); "composite" (shared memory inside a node, messages between nodes);
            "loopback" (a world of one only); "auto" is loopback in a world of one, else what the
            topology asks for: shared memory for one node, a process group for nodes of one rank,
            composite in all other cases.
        topology: which ranks share a node; several nodes may lie on one host. None takes one node
            per host, or one per rank for "process_group".

    Raises:
        TypeError: a store or a topology that is none.
        ValueError: arguments that don't fit together.
        RuntimeError: shared memory on a system that lacks what it needs.
        TransportError: ranks that can't share a node, hosts with different numbers of ranks, or a
            rank that doesn't come in time.
    """
    _check(rank, world, store, timeout, kind, topology)
    if world == 1 and kind in ("auto", "loopback"):
        return Loopback(1, timeout).transports[0]
    # Imported here because planning needs neither.
    from sshsdp_zerosm.shared_memory.node import can_share, check_platform

    if kind in ("shared_memory", "composite"):
        check_platform()
    with contextlib.ExitStack() as stack:
        own = Card.own(world, kind, str(topology or "real"))
        listener = stack.enter_context(_listen(own)) if can_share() else None
        meeting = meet(rank, own, store, timeout, topology)
        with Distress(meeting.store, rank, world).telling():
            transport = _open(meeting, listener)
    transport.store = store
    watch_forks(transport)
    return transport


def _check(
    rank: int, world: int, store: Any, timeout: float, kind: str, topology: Topology | None
) -> None:
    if not all(isinstance(number, int) for number in (rank, world)) or not 0 <= rank < world:
        raise ValueError(
            f"expected 0 <= rank < world, got rank {rank!r} and world {world!r}; give both as ints"
        )
    if not isinstance(timeout, Real) or not 0 < timeout <= _LONGEST_TIMEOUT:
        raise ValueError(
            f"expected a timeout above 0 seconds and up to {_LONGEST_TIMEOUT:,}, got {timeout!r}"
        )
    if topology is not None and not isinstance(topology, Topology):
        raise TypeError(
            f"expected a topology, got {topology!r}; give Topology(nodes, ranks_per_node)"
        )
    if store is not None and not callable(getattr(store, "compare_set", None)):
        raise TypeError(
            f"expected a store, got {store!r}; give a TCPStore or FileStore of torch.distributed"
        )
    if kind not in KINDS:
        raise ValueError(f"expected kind to be one of {', '.join(KINDS)}, got {kind!r}")
    if kind == "loopback" and world > 1:
        raise ValueError(
            f"expected world 1 for kind 'loopback', got {world}: use Loopback(world) to play all "
            f"ranks in one process"
        )
    if world > 1 and store is None:
        raise ValueError(f"expected a store to find the other {world - 1} ranks, got None")
    if topology is None:
        return
    if topology.world != world:
        raise ValueError(f"expected a topology of {world} ranks, got {topology}")
    if kind == "shared_memory" and topology.nodes > 1:
        raise ValueError(
            f"expected one node for kind 'shared_memory', got topology {topology}: use 'composite'"
        )
    if kind == "process_group" and topology.ranks_per_node > 1:
        raise ValueError(
            f"expected nodes of one rank for kind 'process_group', got topology {topology}: use "
            f"'composite'"
        )


def _listen(own: Card) -> socket.socket:
    from sshsdp_zerosm.shared_memory.mesh import new_socket

    listener = new_socket()
    listener.bind(own.socket_name)
    listener.listen(own.world)
    return listener


def _open(meeting: Meeting, listener: socket.socket | None) -> Transport:
    from sshsdp_zerosm.composite import CompositeTransport
    from sshsdp_zerosm.process_group import ProcessGroupTransport
    from sshsdp_zerosm.shared_memory import SharedMemoryTransport
    from sshsdp_zerosm.shared_memory.node import check_platform

    kind, topology = meeting.cards[0].kind, meeting.topology
    if kind == "process_group" or (kind == "auto" and topology.ranks_per_node == 1):
        return ProcessGroupTransport(meeting)
    check_platform()
    assert listener is not None
    if topology.nodes == 1:
        return SharedMemoryTransport(meeting, listener)
    return CompositeTransport(meeting, listener)
