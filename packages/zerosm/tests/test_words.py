"""Counters never overtake what they announce, on any processor."""

import ctypes.util
from types import SimpleNamespace

import numpy as np
import pytest
from testing.ranks import run_ranks

from sshsdp_zerosm import Region, Schedule, Signal, Wait, all_gather_push, connect, words
from sshsdp_zerosm.words import AtomicWords, ordered_words

needs_libatomic = pytest.mark.skipif(
    ctypes.util.find_library("atomic") is None, reason="libatomic is not installed"
)


@pytest.fixture
def weakly_ordered(monkeypatch):
    """Take the way that other processors than x86-64 take."""
    monkeypatch.setattr(words, "platform", SimpleNamespace(machine=lambda: "aarch64"))


def litmus(rank, rounds):
    """Rank 0 writes a payload, then raises a counter; rank 1 waits for it and looks."""
    with connect(rank.rank, 2, rank.store, timeout=60) as transport:
        payload = transport.arena("payload", 1 << 16, shared=True).tensor().numpy().view(np.int64)
        ping = ((Signal("ping", (1,)), Wait(1, "pong")), (Wait(0, "ping"),))
        pong = ((), (Signal("pong", (0,)),))
        program = transport.compile(Schedule("litmus", 2, {"ping": ping, "pong": pong}))
        for round_ in range(1, rounds):
            if rank.rank == 0:
                payload[:] = round_
            program.run("ping")
            if rank.rank == 1:
                assert payload[0] == round_
                assert payload[-1] == round_
                assert (payload == round_).all()
            program.run("pong")
    return rounds


def test_a_signal_that_was_seen_implies_its_payload():
    assert run_ranks(litmus, 2, 5000) == [5000] * 2


@needs_libatomic
def test_a_signal_that_was_seen_implies_its_payload_through_libatomic(weakly_ordered):
    assert run_ranks(litmus, 2, 1000) == [1000] * 2


@needs_libatomic
def test_other_processors_use_sequentially_consistent_words(weakly_ordered):
    memory = np.zeros(4, dtype=np.int64)
    ordered = ordered_words(memoryview(memory.view(np.uint8)), memory.ctypes.data)
    assert isinstance(ordered, AtomicWords)
    ordered[2] = -5
    ordered[3] = 2**62
    assert memory.tolist() == [0, 0, -5, 2**62]
    memory[0] = 7
    assert (ordered[0], ordered[3]) == (7, 2**62)
    for index in (-1, 4):
        with pytest.raises(IndexError, match="a word below 4"):
            ordered[index]
    ordered.release()
    with pytest.raises(IndexError):
        ordered[0]


def test_a_processor_without_ordered_words_is_a_clear_error(weakly_ordered, monkeypatch):
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    with pytest.raises(RuntimeError, match=r"expected libatomic on aarch64.*install it"):
        connect(0, 1, kind="shared_memory")


def test_counters_beyond_32_bits_still_wake_sleepers():
    """A futex compares the low half of a word only; the counts compare whole."""

    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            transport.arena("a", 16)
            schedule = all_gather_push(
                "g",
                shards=[Region("a", at, 8 * at, 8) for at in (0, 1)],
                outputs=[Region("a", at, 0, 16) for at in (0, 1)],
                group=(0, 1),
                world=2,
            )
            program = transport.compile(schedule)
            start = 2**32 - 2
            for channel in ("g.filled", "g.consumed"):
                cursor = transport._compiler._channels.cursor(1 - rank.rank, channel)
                cursor.count = start
                transport._own.words[cursor.word] = start
            transport.barrier()
            for _ in range(5):
                for phase in ("acquire", "gather", "release"):
                    program.run(phase)
            return transport._own.words[cursor.word] - start

    assert run_ranks(rank_main, 2) == [5, 5]
