"""Ranks find each other through a store, and only their own kind."""

import math
import os
import subprocess
import sys
import time

import pytest
import torch
from testing.ranks import run_ranks
from torch.distributed import FileStore, HashStore, PrefixStore

import sshsdp_zerosm.card as card_module
import sshsdp_zerosm.shared_memory.node as node_module
from sshsdp_zerosm import PeerDiedError, Topology, TransportError, WaitTimeoutError, connect
from sshsdp_zerosm.composite import CompositeTransport
from sshsdp_zerosm.loopback import LoopbackTransport
from sshsdp_zerosm.process_group import ProcessGroupTransport
from sshsdp_zerosm.shared_memory import SharedMemoryTransport


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world": 2}, "0 <= rank < world, got rank 2 and world 2"),
        ({"rank": -1, "world": 2}, "got rank -1"),
        ({"rank": 0, "world": 2}, "a store to find the other 1 ranks, got None"),
        ({"rank": 0, "world": 2, "kind": "loopback"}, "world 1 for kind 'loopback', got 2"),
        ({"rank": 0, "world": 1, "kind": "tcp"}, "composite, loopback, got 'tcp'"),
        ({"rank": 0, "world": 1, "timeout": 0}, "above 0 seconds and up to 1,000,000, got 0"),
        ({"rank": 0, "world": 2, "timeout": math.inf}, "up to 1,000,000, got inf"),
        ({"rank": 0, "world": 1, "timeout": math.nan}, "up to 1,000,000, got nan"),
        ({"rank": 0, "world": 2, "timeout": 1e18}, "up to 1,000,000, got 1e[+]18"),
        ({"rank": 0, "world": 1, "timeout": "5"}, "up to 1,000,000, got '5'"),
        ({"rank": 0.0, "world": 1}, r"got rank 0\.0 and world 1; give both as ints"),
        ({"rank": 0, "world": "2"}, "got rank 0 and world '2'"),
        ({"rank": 0, "world": 4, "topology": Topology(3, 2)}, "a topology of 4 ranks, got 3x2"),
        (
            {"rank": 0, "world": 4, "topology": Topology(2, 2), "kind": "shared_memory"},
            "one node for kind 'shared_memory', got topology 2x2",
        ),
        (
            {"rank": 0, "world": 4, "topology": Topology(2, 2), "kind": "process_group"},
            "nodes of one rank for kind 'process_group', got topology 2x2",
        ),
    ],
)
def test_bad_arguments_are_refused_before_any_communication(arguments, message):
    store = None if "a store" in message else HashStore()
    with pytest.raises(ValueError, match=message):
        connect(**arguments, store=store)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topology": "2x1"}, r"a topology, got '2x1'; give Topology\(nodes, ranks_per_node\)"),
        ({"topology": (2, 1)}, r"a topology, got \(2, 1\)"),
        ({"store": "tcp://host:1"}, "a store, got 'tcp://host:1'; give a TCPStore or FileStore"),
    ],
)
def test_what_is_no_store_or_topology_is_refused_before_any_communication(arguments, message):
    with pytest.raises(TypeError, match=message):
        connect(0, 2, **({"store": HashStore()} | arguments))


def test_a_world_of_one_needs_no_store():
    assert isinstance(connect(0, 1), LoopbackTransport)
    with connect(0, 1, kind="shared_memory") as transport:
        assert isinstance(transport, SharedMemoryTransport)
        transport.arena("a", 8).tensor().fill_(1)
        transport.seal()
        transport.idle()
        transport.publish()
        assert transport.exchange(b"alone") == [b"alone"]


def test_a_number_that_two_ranks_have_is_named():
    def rank_main(rank):
        rank.store.add("here", 1)
        while rank.store.add("here", 0) < 2:
            time.sleep(0.01)
        with pytest.raises(TransportError) as caught:
            connect(0, 2, rank.store, timeout=3)
        return str(caught.value)

    first, second = sorted(run_ranks(rank_main, 2))
    assert first.startswith("expected one process per rank, got rank 0 twice while it waited 3 s")
    assert "Rank 1 has not come, and a rank 0 has come before: look whether two pro" in second


def test_a_file_store_serves_too(tmp_path):
    def rank_main(rank):
        store = FileStore(str(tmp_path / "store"), 2)
        with connect(rank.rank, 2, store, timeout=30) as transport:
            return transport.exchange(bytes([rank.rank]))

    assert run_ranks(rank_main, 2) == [[b"\0", b"\1"]] * 2


def test_a_store_may_be_used_again_and_transports_do_not_mix():
    def rank_main(rank):
        first = connect(rank.rank, 2, rank.store, timeout=30)
        second = connect(rank.rank, 2, rank.store, timeout=30)
        first.arena("a", 8).tensor().fill_(1)
        second.arena("a", 16).tensor().fill_(2)
        first.close()
        with connect(rank.rank, 2, rank.store, timeout=30) as third:
            assert third.exchange(b"3") == [b"3", b"3"]
        assert second.exchange(b"2") == [b"2", b"2"]
        second.close()

    run_ranks(rank_main, 2)


def test_a_subgroup_may_connect_between_two_of_the_world():
    """A counter shared by both would shift for members only."""

    def rank_main(rank):
        connect(rank.rank, 3, rank.store, timeout=30).close()
        if rank.rank < 2:
            connect(rank.rank, 2, PrefixStore("pair", rank.store), timeout=30).close()
        with connect(rank.rank, 3, rank.store, timeout=30) as transport:
            transport.barrier()

    run_ranks(rank_main, 3)


def test_a_rank_that_does_not_come_is_named():
    def rank_main(rank):
        if rank.rank == 1:
            return
        with pytest.raises(WaitTimeoutError, match="for rank 1 on channel 'connect'"):
            connect(rank.rank, 3, rank.store, timeout=0.5)

    run_ranks(rank_main, 3)


@pytest.mark.parametrize(
    ("index", "what"),
    [(0, "other-boot"), (1, "net:[1]"), (2, "pid:[1]")],
    ids=["boot", "net", "pid"],
)
def test_ranks_of_another_host_or_container_are_the_same_clear_error(monkeypatch, index, what):
    def rank_main(rank):
        if rank.rank == 1:
            identity = list(card_module.host_identity())
            identity[index] = what
            monkeypatch.setattr(card_module, "host_identity", lambda: tuple(identity))
        with pytest.raises(
            TransportError, match="all ranks of a node on one host and in one"
        ) as caught:
            connect(rank.rank, 3, rank.store, timeout=30, kind="shared_memory")
        return str(caught.value)

    answers = run_ranks(rank_main, 3)
    assert len(set(answers)) == 1
    assert what in answers[0]


def pretend_hosts(monkeypatch, rank, hosts):
    """Rank r is on host ``hosts[r]``, as far as its card says."""
    real = card_module.host_identity()
    pretended = (f"host {hosts[rank]}", *real[1:])
    monkeypatch.setattr(card_module, "host_identity", lambda: pretended)


@pytest.mark.parametrize(
    ("hosts", "kind", "topology"),
    [
        ("aaaa", SharedMemoryTransport, Topology(1, 4)),
        ("aabb", CompositeTransport, Topology(2, 2)),
        ("abcd", ProcessGroupTransport, Topology(4, 1)),
    ],
)
def test_ranks_of_a_host_are_a_node(monkeypatch, hosts, kind, topology):
    def rank_main(rank):
        pretend_hosts(monkeypatch, rank.rank, hosts)
        with connect(rank.rank, 4, rank.store, timeout=30) as transport:
            assert type(transport) is kind
            assert transport.topology == topology
            return transport.exchange(bytes([rank.rank]))

    assert run_ranks(rank_main, 4) == [[b"\0", b"\1", b"\2", b"\3"]] * 4


@pytest.mark.parametrize("hosts", ["aaab", "abab", "abba"])
def test_hosts_of_unequal_size_or_mixed_ranks_are_the_same_error_on_all(monkeypatch, hosts):
    def rank_main(rank):
        pretend_hosts(monkeypatch, rank.rank, hosts)
        with pytest.raises(TransportError, match="as many ranks on every host") as caught:
            connect(rank.rank, 4, rank.store, timeout=30)
        return str(caught.value)

    answers = run_ranks(rank_main, 4)
    assert len(set(answers)) == 1
    assert "on host a/" in answers[0]
    assert "on host b/" in answers[0]


def test_a_topology_whose_node_spans_hosts_is_the_same_error_on_all(monkeypatch):
    def rank_main(rank):
        pretend_hosts(monkeypatch, rank.rank, "aabc")
        with pytest.raises(TransportError, match="a node on one host and in one") as caught:
            connect(rank.rank, 4, rank.store, timeout=30, topology=Topology(2, 2))
        return str(caught.value)

    answers = run_ranks(rank_main, 4)
    assert len(set(answers)) == 1
    assert "rank 2: ('host b'" in answers[0]


def test_a_topology_may_join_hosts_of_any_kind_by_messages(monkeypatch):
    def rank_main(rank):
        pretend_hosts(monkeypatch, rank.rank, "aba")
        with connect(rank.rank, 3, rank.store, timeout=30, topology=Topology(3, 1)) as transport:
            return transport.exchange(b"x")

    assert run_ranks(rank_main, 3) == [[b"x"] * 3] * 3


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"kind": "composite"}, "the same kind of transport .* rank 0: auto, rank 1: composite"),
        ({"topology": Topology(2, 1)}, "the same topology .* rank 0: real, rank 1: 2x1"),
    ],
)
def test_ranks_that_ask_for_different_things_get_the_same_error(what, message):
    def rank_main(rank):
        with pytest.raises(TransportError, match=message):
            connect(rank.rank, 2, rank.store, timeout=30, **(what if rank.rank else {}))

    run_ranks(rank_main, 2)


def test_the_users_own_group_is_left_alone():
    import torch.distributed as dist

    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30, kind="process_group") as transport:
            assert not dist.is_initialized()
            dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=2)
            value = torch.tensor([rank.rank + 1])
            dist.all_reduce(value)
            dist.destroy_process_group()
            assert int(value) == 3
            return transport.exchange(b"x")

    assert run_ranks(rank_main, 2) == [[b"x", b"x"]] * 2


@pytest.mark.parametrize("kind", ["process_group", "composite", "shared_memory"])
def test_one_rank_may_be_alone_with_any_transport(kind):
    with connect(0, 1, kind=kind) as transport:
        transport.arena("a", 8).tensor().fill_(1)
        transport.seal()
        transport.publish()
        assert transport.exchange(b"alone") == [b"alone"]
        assert transport.topology == Topology(1, 1)


def test_messages_need_no_linux(monkeypatch):
    def rank_main(rank):
        monkeypatch.setattr(sys, "platform", "darwin")
        with connect(rank.rank, 2, rank.store, timeout=30, kind="process_group") as transport:
            transport.arena("a", 8)
            return transport.exchange(b"x")

    assert run_ranks(rank_main, 2) == [[b"x", b"x"]] * 2


def test_different_worlds_or_users_are_refused(monkeypatch):
    def rank_main(rank):
        with pytest.raises(TransportError, match="rank 0: 3, rank 1: 2"):
            connect(rank.rank, 3 - rank.rank, rank.store, timeout=3)
        if rank.rank == 1:
            monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(TransportError, match="the same user id on all ranks"):
            connect(rank.rank, 2, rank.store, timeout=30)

    # Rank 0 would wait for a third rank's card: it is there, written by rank 1's first attempt.
    def with_third_card(rank):
        if rank.rank == 1:
            rank.store.set("zerosm/1/2", rank.store.get("zerosm/1/0"))
        return rank_main(rank)

    run_ranks(with_third_card, 2)


def test_a_rank_that_dies_while_it_connects_is_named(monkeypatch):
    def rank_main(rank):
        if rank.rank == 1:
            monkeypatch.setattr(node_module, "Mesh", lambda *_: os._exit(1))
        start = time.monotonic()
        with pytest.raises(PeerDiedError, match="rank 1 died"):
            connect(rank.rank, 3, rank.store, timeout=60)
        assert time.monotonic() - start < 5

    run_ranks(rank_main, 3, expect_death=(1,))


def test_no_descriptor_is_left_when_connecting_fails(monkeypatch):
    def rank_main(rank):
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(node_module.Mesh, "connect", _refuse)
        with pytest.raises(TransportError, match="refused"):
            connect(rank.rank, 2, rank.store, timeout=30)
        assert len(os.listdir("/proc/self/fd")) == before

    run_ranks(rank_main, 2)


def _refuse(*_):
    raise TransportError("refused")


def test_without_linux_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match=r"expected Linux 5.3 or newer.*kind='process_group'"):
        connect(0, 1, kind="shared_memory")


RANK_SCRIPT = """
import os
from torch.distributed import FileStore, PrefixStore, TCPStore
from sshsdp_zerosm import connect

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if "FILE_STORE" in os.environ:
    store = FileStore(os.environ["FILE_STORE"], world)
else:
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, world, rank == 0 and not agent)
with connect(rank, world, PrefixStore("test", store), timeout=60) as transport:
    transport.arena("a", 64).tensor().fill_(rank + 1)
    transport.seal()
    values = transport.exchange(bytes([rank]))
    with open(os.environ["OUTPUT"] + str(rank), "wb") as file:
        file.write(b"".join(values))
"""


@pytest.fixture
def rank_script(tmp_path, monkeypatch):
    script = tmp_path / "ranks.py"
    script.write_text(RANK_SCRIPT)
    monkeypatch.setenv("OUTPUT", str(tmp_path / "out"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield str(script)
    assert [(tmp_path / f"out{rank}").read_bytes() for rank in (0, 1)] == [b"\0\1", b"\0\1"]


def test_processes_without_a_common_parent_state_connect(rank_script, tmp_path):
    common = os.environ | {"WORLD_SIZE": "2", "FILE_STORE": str(tmp_path / "store")}
    ranks = [
        subprocess.Popen([sys.executable, rank_script], env=common | {"RANK": str(rank)})
        for rank in (0, 1)
    ]
    assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]


@pytest.mark.full
def test_ranks_that_torchrun_started_connect(rank_script):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*launch, rank_script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
