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
