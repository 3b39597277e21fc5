"""Nodes that lose each other: a cut cable, broken connections, a host that stands still."""

import contextlib
import os
import re
import signal
import socket
import threading
from functools import partial

import pytest
from integration.failure.leftovers import nothing_stays
from integration.failure.namespaces import (
    NotPermittedError,
    ip,
    join_and_own_network,
    own_network,
)
from integration.failure.program import sharded, train
from integration.failure.victims import stop
from testing.ranks import run_ranks

from sshsdp_zerosm import TransportError

SHORT = 3.0  # seconds


def train_until_it_fails(rank, nodes, timeout, happens):
    """Type and text of the error that ends training after something happens to this rank."""
    try:
        with sharded(rank, nodes, timeout) as model:
            assert model.transport.topology.nodes == nodes
            train(model, rank.rank, range(1))
            model.transport.barrier()
            if happens is not None:
                happens()
            train(model, rank.rank, range(1, 1000))
    except TransportError as error:
        return type(error).__name__, str(error)
    raise AssertionError("nothing happened")


def with_a_cable(rank):
    """Give this rank a network of its own, which a cable connects to the other rank's."""
    name = f"cable{rank.rank}"
    if rank.rank == 0:
        own_network()
        rank.store.set("pid 0", str(os.getpid()))
        rank.store.wait(["pid 1"])
        ip(
            "link",
            "add",
            name,
            "type",
            "veth",
            "peer",
            "cable1",
            "netns",
            rank.store.get("pid 1").decode(),
        )
        rank.store.set("cable", "")
    else:
        join_and_own_network(int(rank.store.get("pid 0")))
        rank.store.set("pid 1", str(os.getpid()))
        rank.store.wait(["cable"])
    ip("addr", "add", f"10.9.8.{1 + rank.rank}/24", "dev", name)
    ip("link", "set", name, "up")
    os.environ["GLOO_SOCKET_IFNAME"] = name
    return name


def train_until_the_cable_is_cut(rank):
    try:
        cable = with_a_cable(rank)
    except NotPermittedError as error:
        rank.store.set("pid 0", "0")
        rank.store.set("pid 1", "0")
        rank.store.set("cable", "")
        return str(error)
    cut = partial(ip, "link", "set", cable, "down") if rank.rank == 0 else None
    answer = train_until_it_fails(rank, 2, SHORT, cut)
    assert threading.active_count() == 1
    return answer


def test_a_cut_cable_is_a_timeout_that_names_the_rank_beyond_it():
    with nothing_stays():
        answers = run_ranks(train_until_the_cable_is_cut, 2)
    if isinstance(answers[0], str) or isinstance(answers[1], str):
        pytest.skip(f"no networks of their own for ranks here: {answers}")
    for rank, (kind, text) in enumerate(answers):
        assert kind == "WaitTimeoutError"
        assert text.startswith(f"rank {rank} waited 3 s for rank {1 - rank} on channel")


def connections():
    """Descriptors of this process's TCP connections."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as copy:
            if copy.type == socket.SOCK_STREAM and copy.family != socket.AF_UNIX:
                copy.getpeername()
                found.add(int(name))
    return found


def lose_connections(rank, nodes):
    before = connections()

    def shut_down():
        for descriptor in connections() - before:
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                copy.shutdown(socket.SHUT_RDWR)

    return train_until_it_fails(rank, nodes, 60.0, shut_down if rank.rank == 1 else None)


@pytest.mark.parametrize(("world", "nodes"), [(3, 3), (4, 2)])
def test_a_rank_whose_connections_break_can_not_be_reached_and_is_named(world, nodes):
    with nothing_stays():
        answers = run_ranks(lose_connections, world, nodes)
    for rank in {*range(world)} - {1}:
        kind, text = answers[rank]
        assert kind == "PeerDiedError"
        assert text.startswith("rank 1 died or can't be reached: ")
    assert answers[1][0] == "PeerDiedError"  # for itself, everyone else is gone


def stand_still(rank):
    rank.store.set(f"pid {rank.rank}", str(os.getpid()))
    _, text = train_until_it_fails(rank, 2, SHORT, stop if rank.rank // 2 else None)
    if rank.store.add("ended", 1) == 2:
        for other in (2, 3):
            os.kill(int(rank.store.get(f"pid {other}")), signal.SIGKILL)
    return text


def test_a_node_that_stands_still_is_named_by_one_of_its_ranks():
    with nothing_stays():
        first, second, *_ = run_ranks(stand_still, 4, expect_death=(2, 3))
    late = r"Rank [23] is alive but late"
    # Whoever waits for the other rank of its own node is told for whom that one waits.
    through = rf"waited 3 s for rank [01] on .* Rank [01] waits for rank [23] itself\. {late}"
    for text in (first, second):
        assert re.search(rf"waited 3 s for rank [23] on channel .* {late}|{through}", text)
