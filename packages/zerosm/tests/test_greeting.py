"""Ranks of a node greet each other over sockets that anybody on the host can reach."""

import os
import socket
import time

import pytest
from testing.ranks import run_ranks

import sshsdp_zerosm.meeting as meeting_module
import sshsdp_zerosm.shared_memory.node as node_module
from sshsdp_zerosm import PeerDiedError, TransportError, connect


def test_a_stranger_on_the_socket_is_ignored(monkeypatch):
    """Something connects to the lowest rank's socket first and says nonsense, or nothing."""
    strangers = []

    def rank_main(rank):
        if rank.rank == 1:
            original = meeting_module.trade_cards

            def trade(*arguments):
                cards, prefix = original(*arguments)
                for messages in ([b"nonsense"], [b"\1\0\0\0" + b"0" * 32], [b""], []):
                    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    stranger.connect(cards[0].socket_name)
                    for message in messages:
                        stranger.send(message)
                    strangers.append(stranger)
                return cards, prefix

            monkeypatch.setattr(meeting_module, "trade_cards", trade)
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            assert transport.exchange(b"x") == [b"x", b"x"]

    run_ranks(rank_main, 2)


def test_a_rank_that_is_slow_to_say_who_it_is_is_waited_for(monkeypatch):
    """A busy machine may stop a rank between its connection and its greeting."""

    def rank_main(rank):
        checked = node_module.Mesh._check_process

        def late(mesh, peer, connection):
            checked(mesh, peer, connection)
            if rank.rank == 2 and peer == 0:
                time.sleep(1.2)

        monkeypatch.setattr(node_module.Mesh, "_check_process", late)
        with connect(rank.rank, 3, rank.store, timeout=30) as transport:
            assert transport.exchange(b"x") == [b"x"] * 3

    run_ranks(rank_main, 3)


def test_a_process_that_pretends_to_be_a_rank_is_refused(monkeypatch):
    """Right token, but not the process that wrote the card."""

    def rank_main(rank):
        if rank.rank == 1:
            monkeypatch.setattr(os, "getpid", os.getppid)
        with pytest.raises(TransportError, match=r"expected process \d+ of user|died or gave up"):
            connect(rank.rank, 2, rank.store, timeout=5)

    run_ranks(rank_main, 2)


def test_a_rank_that_dies_between_the_connection_and_the_greeting_is_named(monkeypatch):
    """The kernel takes the connection for it, so only the greeting finds nobody."""

    def rank_main(rank):
        if rank.rank == 0:
            monkeypatch.setattr(node_module.Mesh, "__init__", lambda *_: os._exit(1))
        checked = node_module.Mesh._check_process

        def late(mesh, peer, connection):
            checked(mesh, peer, connection)
            time.sleep(0.5)

        monkeypatch.setattr(node_module.Mesh, "_check_process", late)
        with pytest.raises(PeerDiedError, match="rank 0 died"):
            connect(rank.rank, 2, rank.store, timeout=60)

    run_ranks(rank_main, 2, expect_death=(0,))
