"""Arenas: agreed on, sized, sealed, mapped once, and gone when nobody holds them."""

import errno
import os

import pytest
import torch
from testing.ranks import run_ranks

from sshsdp_zerosm import Loopback, Pull, Put, Region, Schedule, TransportError, connect
from sshsdp_zerosm.board import BOARD_BYTES
from sshsdp_zerosm.shared_memory.memory import create, map_memory


def mappings():
    with open("/proc/self/maps") as lines:
        return sum("sshsdp-" in line for line in lines)


def threads():
    """Of the process, torch's own included."""
    return len(os.listdir("/proc/self/task"))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def fetch(source, target):
    """Both of two ranks pull eight bytes from the other."""
    ops = [Pull(Region(source, 1 - at, 0, 8), Region(target, at, 8, 8)) for at in (0, 1)]
    return Schedule("fetch", 2, {"p": tuple((op,) for op in ops)})


def everywhere(world, function):
    """The ranks' answers of ``function(transport)``, each on a fresh transport."""

    def rank_main(rank):
        with connect(rank.rank, world, rank.store, timeout=30, kind="shared_memory") as transport:
            return function(transport)

    return run_ranks(rank_main, world)


def test_every_rank_addresses_every_rank():
    def check(transport):
        private = transport.arena("private", 100)
        shared = transport.arena("shared", 100, shared=True)
        private.tensor().fill_(transport.rank + 1)
        shared.tensor()[transport.rank] = transport.rank + 1
        transport.barrier()
        assert [int(private.tensor(rank)[99]) for rank in range(3)] == [1, 2, 3]
        assert shared.tensor().tolist() == [1, 2, 3] + [0] * 97
        assert shared.tensor(2).data_ptr() == shared.tensor().data_ptr()
        assert private.tensor().data_ptr() % 4096 == 0
        assert private.tensor().shape == (100,)
        with pytest.raises(TransportError, match="expected a rank below 3"):
            private.tensor(3)
        transport.barrier()

    everywhere(3, check)


def test_only_ranks_of_the_own_node_are_addressed(layout):
    """What a shared arena is for a node, and what is said of all others."""
    topology = layout.topology

    def check(transport):
        private = transport.arena("private", 100)
        shared = transport.arena("shared", 100, shared=True)
        assert transport.topology == topology
        own = set(topology.ranks_of(topology.node_of(transport.rank)))
        private.tensor().fill_(transport.rank + 1)
        shared.tensor()[transport.rank] = transport.rank + 1
        transport.barrier()
        for peer in range(transport.world):
            assert transport.addressable(peer) == (peer in own)
            if peer in own:
                assert private.tensor(peer).eq(peer + 1).all()
                assert shared.tensor(peer).data_ptr() == shared.tensor().data_ptr()
            else:
                with pytest.raises(TransportError, match=f"got rank {peer} of another node"):
                    private.tensor(peer)
        expected = [rank + 1 if rank in own else 0 for rank in range(transport.world)]
        assert shared.tensor()[: transport.world].tolist() == expected
        assert private.tensor().data_ptr() % 4096 == 0
        transport.barrier()

    layout.run_connected(check)


def test_an_arena_without_bytes_is_legal(layout):
    def check(transport):
        before = transport.external_bytes
        for shared in (False, True):
            arena = transport.arena(f"empty{shared}", 0, shared=shared)
            assert arena.tensor().view(torch.float32).shape == (0,)
        assert transport.external_bytes == before

    layout.run_connected(check)


@pytest.mark.parametrize(
    ("layout", "boards", "shared"),
    [("1x3", 1, [1, 0, 0]), ("3x1", 3, [1, 1, 1]), ("2x2", 3, [1, 0, 1, 0])],
    indirect=["layout"],
)
def test_external_bytes_count_pages_once_per_creator(layout, boards, shared):
    """And a control page for the own board and for the copy of each board of another node."""

    def check(transport):
        transport.arena("private", 4097)
        transport.arena("shared", 1, shared=True)
        return transport.external_bytes - boards * BOARD_BYTES

    assert layout.run_connected(check) == [8192 + 4096 * created for created in shared]


@pytest.mark.parametrize("shared", [False, True])
def test_another_size_on_one_rank_is_the_same_error_on_all_and_leaves_the_transport_usable(
    layout, shared
):
    def check(transport):
        with pytest.raises(TransportError, match="the same arena on all ranks") as caught:
            transport.arena("a", 64 if transport.rank == 1 else 32, shared=shared)
        transport.arena("a", 32, shared=shared)
        return str(caught.value)

    answers = layout.run_connected(check)
    assert len(set(answers)) == 1
    assert "rank 0: 'a' of 32 bytes" in answers[0]
    assert "rank 1: 'a' of 64 bytes" in answers[0]


def test_more_memory_than_there_is_is_an_error_at_setup_on_all_ranks(layout):
    def check(transport):
        with pytest.raises(TransportError, match="cgroup have available, got") as caught:
            transport.arena("huge", 2**50)
        return str(caught.value)

    assert len(set(layout.run_connected(check))) == 1


def test_a_rank_that_can_not_reserve_is_the_same_error_on_all_ranks(monkeypatch):
    def check(transport):
        if transport.rank == 1:
            refuse = OSError(errno.ENOSPC, "No space left on device")
            monkeypatch.setattr(os, "posix_fallocate", _raiser(refuse))
        with pytest.raises(TransportError, match="expected every rank to map it") as caught:
            transport.arena("a", 64)
        return str(caught.value)

    answers = everywhere(3, check)
    assert len(set(answers)) == 1
    assert "rank 1: can't reserve 4096 bytes" in answers[0]
    assert "rank 0: got no memory from rank 1" in answers[0]


def _raiser(error):
    def function(*_):
        raise error

    return function


def test_arenas_end_with_seal(layout):
    def check(transport):
        transport.arena("a", 8)
        transport.seal()
        transport.seal()
        with pytest.raises(TransportError, match=r"expected all arenas before seal\(\), got 'b'"):
            transport.arena("b", 8)
        assert transport.exchange(b"x") == [b"x"] * transport.world

    layout.run_connected(check)


def test_a_taken_name_or_a_negative_size_is_refused(layout):
    def check(transport):
        transport.arena("a", 8)
        with pytest.raises(ValueError, match="expected a new arena name"):
            transport.arena("a", 8)
        with pytest.raises(ValueError, match="nbytes >= 0, got 'b' and -1"):
            transport.arena("b", -1)

    layout.run_connected(check)


def test_nobody_can_shrink_or_grow_the_memory_of_others():
    descriptor = create("test", 8192)
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    assert len(map_memory(descriptor, 8192)) == 8192


def test_memory_that_a_peer_could_shrink_is_not_mapped():
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 8192)
    with pytest.raises(TransportError, match="expected sealed memory of 8192 bytes"):
        map_memory(descriptor, 8192)


def test_live_tensors_survive_close_and_their_memory_dies_with_them():
    def rank_main(rank):
        transport = connect(rank.rank, 2, rank.store, timeout=30)
        arena = transport.arena("a", 8192)
        transport.arena("b", 8192)
        tensor = arena.tensor(1 - rank.rank)
        arena.tensor().fill_(rank.rank + 1)
        program = transport.compile(fetch("a", "b"))
        transport.barrier()
        transport.close()
        transport.close()
        assert mappings() == 1
        assert tensor.eq(2 - rank.rank).all()
        view = tensor.view(torch.int32)[5:]
        del tensor
        assert mappings() == 1
        assert view.numel() == 2043
        del view
        assert mappings() == 0
        with pytest.raises(TransportError, match="expected an open transport, got a closed one"):
            program.run("p")
        with pytest.raises(TransportError, match="arena 'a' is closed"):
            arena.tensor()

    run_ranks(rank_main, 2)


def test_a_released_arena_is_gone_while_the_transport_goes_on(layout):
    def check(transport):
        world, before = transport.world, (mappings(), transport.external_bytes)
        kept = transport.arena("kept", 8192)
        with_kept = mappings(), transport.external_bytes

        def ring(name):
            ops = [
                Put(Region(name, at, 0, 8), Region(name, (at + 1) % world, 1024, 8))
                for at in range(world)
            ]
            return Schedule(name, world, {"p": tuple((op,) for op in ops)})

        program = transport.compile(ring("kept"))
        for round_ in range(3):
            for shared in (False, True):
                arena = transport.arena("gone", 8192, shared=shared)
                assert not arena.tensor().any()  # the name was there before, its bytes weren't
                transport.barrier()
                arena.tensor().fill_(7)
                other = transport.compile(ring("gone"))
                other.run("p")
                view = arena.tensor()[5:]
                transport.barrier()
                transport.release(["gone"])
                assert view.eq(7).all()
                with pytest.raises(TransportError, match="arena 'gone' is closed"):
                    arena.tensor()
                with pytest.raises(ValueError, match=r"expected names of arenas, got \['gone'\]"):
                    transport.release(["kept", "gone"])
                del view, other, arena
                assert (mappings(), transport.external_bytes) == with_kept
            kept.tensor()[:8].fill_(round_ + 1)
            transport.barrier()
            program.run("p")
            transport.barrier()
        transport.release(["kept"])
        del program, kept
        assert (mappings(), transport.external_bytes) == before
        transport.close()
        transport.release(["anything"])

    layout.run_connected(check)


@pytest.mark.parametrize("world", [1, 3])
def test_the_memory_of_a_loopback_goes_with_the_last_rank_that_lets_go(world):
    transports = Loopback(world).transports
    for value in (1, 2):
        arenas = [transport.arena("a", 64) for transport in transports]
        assert not any(bool(arena.tensor().any()) for arena in arenas)
        arenas[0].tensor().fill_(value)
        for transport in transports:
            transport.release(["a"])


@pytest.mark.parametrize(
    ("layout", "mapped"), [("1x2", 4), ("2x1", 0), ("2x2", 4)], indirect=["layout"]
)
def test_descriptors_mappings_and_threads_do_not_grow(layout, mapped):
    """Fifty times: connect, use, close."""
    topology = layout.topology

    def ring(at):
        return Put(Region("a", at, 0, 8), Region("a", (at + 1) % topology.world, 1024, 8))

    schedule = Schedule(
        "ring", topology.world, {"p": tuple((ring(at),) for at in range(topology.world))}
    )

    def rank_main(rank):
        counts = []
        for round_ in range(50):
            with layout.connect(rank) as transport:
                arena = transport.arena("a", 8192)
                program = transport.compile(schedule)
                for _ in range(20):
                    program.run("p")
                views = [arena.tensor()[index:] for index in range(200)]
                transport.barrier()
                assert len(views) == 200
                inside = mappings()
            del views, arena, program
            if round_ > 0:
                counts.append((descriptors(), mappings(), threads(), inside))
        assert len(set(counts)) == 1, counts
        return counts[0][1:]

    assert layout.run(rank_main) == [(0, 1, mapped)] * layout.world


@pytest.mark.parametrize(("name", "nbytes"), [("a", 1.5), ("a", "8"), ("a", None), (3, 8)])
def test_a_name_or_a_size_of_another_type_is_refused_and_the_transport_goes_on(name, nbytes):
    with connect(0, 1) as transport:
        with pytest.raises(
            TypeError, match=rf"as an int, got {name!r} and {nbytes!r}; write arena"
        ):
            transport.arena(name, nbytes)
        assert transport.arena("a", 8).tensor().tolist() == [0] * 8
