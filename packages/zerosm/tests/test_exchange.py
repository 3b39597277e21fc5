"""Small messages: any sizes, one at a time, the same collective call everywhere."""

import random

import pytest
from testing.ranks import run_ranks

from sshsdp_zerosm import TransportError, connect

LIMIT = 256 * 1024


def payload(rank, round_):
    generator = random.Random(f"{rank} {round_}")
    size = generator.choice([0, 1, 7, 64, 1000, LIMIT]) if round_ % 50 else LIMIT
    return generator.randbytes(size)


def test_payloads_of_changing_sizes_arrive_whole_and_in_rank_order():
    def rank_main(rank):
        with connect(rank.rank, 3, rank.store, timeout=30) as transport:
            for round_ in range(300):
                expected = [payload(peer, round_) for peer in range(3)]
                if round_ % 3 == rank.rank:
                    assert transport.exchange(payload(rank.rank, round_)) == expected
                else:
                    pending = transport.start_exchange(payload(rank.rank, round_))
                    assert pending.wait() == expected
                    assert pending.wait() is pending.wait()

    run_ranks(rank_main, 3)


def test_a_barrier_may_run_inside_an_open_exchange_but_no_second_exchange():
    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            pending = transport.start_exchange(b"a")
            transport.barrier()
            with pytest.raises(TransportError, match="one exchange at a time, got a second"):
                transport.exchange(b"b")
            assert pending.wait() == [b"a", b"a"]
            assert transport.exchange(b"c") == [b"c", b"c"]

    run_ranks(rank_main, 2)


def test_a_payload_beyond_the_mailbox_is_the_same_error_on_all_ranks_and_no_hang():
    def rank_main(rank):
        with connect(rank.rank, 3, rank.store, timeout=30) as transport:
            size = LIMIT + 1 if rank.rank == 1 else 5
            with pytest.raises(ValueError, match="expected payloads") as caught:
                transport.exchange(bytes(size))
            assert transport.exchange(b"after") == [b"after"] * 3
            return str(caught.value)

    answers = run_ranks(rank_main, 3)
    assert len(set(answers)) == 1
    assert f"at most {LIMIT} bytes, got {LIMIT + 1} from rank 1" in answers[0]


def test_different_collective_calls_are_the_same_error_on_all_ranks():
    def rank_main(rank):
        with connect(rank.rank, 3, rank.store, timeout=30) as transport:
            calls = [
                lambda: transport.exchange(b""),
                lambda: transport.arena("a", 8),
                transport.seal,
            ]
            with pytest.raises(TransportError, match="the same collective call") as caught:
                calls[rank.rank]()
            return str(caught.value)

    answers = run_ranks(rank_main, 3)
    assert len(set(answers)) == 1
    assert "got rank 0 exchange, rank 1 arena, rank 2 seal" in answers[0]
