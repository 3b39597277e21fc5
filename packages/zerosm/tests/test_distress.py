"""While ranks connect, whoever can't is named on all others, with the reason and soon."""

import os
import time

import pytest
from testing.ranks import run_ranks

import sshsdp_zerosm.process_group.network as network_module
import sshsdp_zerosm.shared_memory.node as node_module
from sshsdp_zerosm import Topology, TransportError, connect


def fails_to_connect(how):
    """Connect two nodes of two; rank 1 does something else once it has met the others."""

    def rank_main(rank):
        if rank.rank == 1:
            node_module.Mesh.connect = how
        start = time.monotonic()
        with pytest.raises(TransportError) as caught:
            connect(rank.rank, 4, rank.store, timeout=3, topology=Topology(2, 2))
        return type(caught.value).__name__, str(caught.value), time.monotonic() - start

    return rank_main


def test_ranks_of_other_nodes_hear_at_once_why_a_rank_can_not_connect():
    def refuse(*_):
        raise TransportError("no more descriptors")

    first, _, *far = run_ranks(fails_to_connect(refuse), 4)
    for kind, text, seconds in (first, *far):
        assert kind == "AbortedError"
        assert text == "rank 1 can't connect: TransportError: no more descriptors"
        assert seconds < 2.5


@pytest.mark.parametrize(
    ("place", "nodes"), [("Mesh._admit", 1), ("Handover._create", 1), ("Handover._create", 2)]
)
def test_a_rank_that_fails_while_it_is_connected_says_why_before_its_connections_end(place, nodes):
    def rank_main(rank):
        if rank.rank == 1:
            tell = node_module.Distress.tell

            def fail(*_):
                raise ZeroDivisionError("of seven")

            def tell_late(*args):
                deadline = time.monotonic() + 0.5
                while rank.store.add("ended", 0) < 3 and time.monotonic() < deadline:
                    time.sleep(0.01)
                tell(*args)

            owner, name = place.split(".")
            setattr(getattr(node_module, owner), name, fail)
            node_module.Distress.tell = tell_late
        topology = Topology(nodes, 4 // nodes)
        with pytest.raises((TransportError, ZeroDivisionError)) as caught:
            connect(rank.rank, 4, rank.store, timeout=30, topology=topology)
        rank.store.add("ended", 1)
        return str(caught.value)

    first, _, *others = run_ranks(rank_main, 4)
    assert {first, *others} == {"rank 1 can't connect: ZeroDivisionError: of seven"}


@pytest.mark.parametrize("reaped", [False, True])
def test_a_rank_that_has_said_why_and_is_gone_does_not_look_like_one_that_died(reaped):
    def rank_main(rank):
        tell, check = node_module.Distress.tell, node_module.Peers.check

        def fail(*_):
            rank.store.get("awaited")
            raise ZeroDivisionError("of seven")

        def tell_and_say_so(*args):
            tell(*args)
            rank.store.set("told", "")

        def check_until_it_has_ended(*args):
            rank.store.set("awaited", "")
            deadline = time.monotonic() + 30
            while not (error := check(*args)) and time.monotonic() < deadline:
                time.sleep(0.01)
            return error

        def open_when_it_is_reaped(pid):
            rank.store.set("awaited", "")
            rank.store.get("told")
            raise ProcessLookupError

        if rank.rank == 1:
            node_module.Mesh.connect = fail
            node_module.Distress.tell = tell_and_say_so
        elif reaped:
            os.pidfd_open = open_when_it_is_reaped
        else:
            node_module.Peers.check = check_until_it_has_ended
        with pytest.raises((TransportError, ZeroDivisionError)) as caught:
            connect(rank.rank, 2, rank.store, timeout=30)
        return str(caught.value)

    first, _ = run_ranks(rank_main, 2)
    assert first == "rank 1 can't connect: ZeroDivisionError: of seven"


def test_a_rank_that_dies_while_its_node_connects_is_named_on_other_nodes():
    answers = run_ranks(fails_to_connect(lambda *_: os._exit(1)), 4, expect_death=(1,))
    for _, text, seconds in (answers[0], *answers[2:]):
        assert "rank 1 died" in text
        assert seconds < 2.5


def test_a_rank_that_never_connects_is_named_by_those_that_wait_for_one_that_waits():
    def rank_main(rank):
        if rank.rank == 1:

            def late(*_):
                while rank.store.add("ended", 0) < 2:
                    time.sleep(0.01)
                raise TransportError("too late")

            node_module.Mesh.connect = late
        with pytest.raises(TransportError) as caught:
            # Rank 2 gives up first; it waits for rank 0, which waits for rank 1.
            connect(rank.rank, 3, rank.store, timeout=2 if rank.rank == 2 else 30)
        rank.store.add("ended", 1)
        return str(caught.value)

    first, _, last = run_ranks(rank_main, 3)
    assert "for rank 0 on channel 'hand-over'" in last
    assert "Rank 0 waits for rank 1 itself. Rank 1 is alive but late" in last
    assert first == f"rank 2 can't connect: WaitTimeoutError: {last}"


def test_gloo_that_fails_names_the_ranks_of_which_it_has_no_address(monkeypatch):
    def rank_main(rank):
        if rank.rank == 1:

            def late(*_):
                while rank.store.add("ended", 0) < 2:
                    time.sleep(0.01)
                raise TransportError("No address came from rank 1.")

            monkeypatch.setattr(network_module, "open_group", late)
        with pytest.raises(TransportError, match=r"No address came from rank 1\."):
            connect(rank.rank, 3, rank.store, timeout=2, kind="process_group")
        rank.store.add("ended", 1)

    run_ranks(rank_main, 3)
