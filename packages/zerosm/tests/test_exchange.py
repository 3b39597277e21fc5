"""Small messages: any sizes, one at a time, the same collective call everywhere."""

import random

import pytest

from sshsdp_zerosm import TransportError

LIMIT = 256 * 1024


def payload(rank, round_):
    generator = random.Random(f"{rank} {round_}")
    size = generator.choice([0, 1, 7, 64, 1000, LIMIT]) if round_ % 50 else LIMIT
    return generator.randbytes(size)


def test_payloads_of_changing_sizes_arrive_whole_and_in_rank_order(layout):
    def check(transport):
        assert transport.max_exchange_bytes == LIMIT
        for round_ in range(150):
            expected = [payload(peer, round_) for peer in range(transport.world)]
            if round_ % 3 == transport.rank:
                assert transport.exchange(payload(transport.rank, round_)) == expected
            else:
                pending = transport.start_exchange(payload(transport.rank, round_))
                assert pending.wait() == expected
                assert pending.wait() is pending.wait()

    layout.run_connected(check)


def test_a_barrier_may_run_inside_an_open_exchange_but_no_second_exchange(layout):
    def check(transport):
        pending = transport.start_exchange(b"a")
        transport.barrier()
        with pytest.raises(TransportError, match="one exchange at a time, got a second"):
            transport.exchange(b"b")
        assert pending.wait() == [b"a"] * transport.world
        assert transport.exchange(b"c") == [b"c"] * transport.world

    layout.run_connected(check)


def test_what_is_no_bytes_is_refused_and_the_transport_goes_on(layout):
    def check(transport):
        for given in ("text", None, 3):
            with pytest.raises(TypeError, match=rf"bytes to exchange, got {type(given).__name__};"):
                transport.exchange(given)
        assert transport.exchange(b"after") == [b"after"] * transport.world

    layout.run_connected(check)


def test_a_payload_beyond_the_mailbox_is_the_same_error_on_all_ranks_and_no_hang(layout):
    def check(transport):
        size = LIMIT + 1 if transport.rank == 1 else 5
        with pytest.raises(ValueError, match="expected payloads") as caught:
            transport.exchange(bytes(size))
        assert transport.exchange(b"after") == [b"after"] * transport.world
        return str(caught.value)

    answers = layout.run_connected(check)
    assert len(set(answers)) == 1
    assert f"at most {LIMIT} bytes, got {LIMIT + 1} from rank 1" in answers[0]


def test_different_collective_calls_are_the_same_error_on_all_ranks(layout):
    def check(transport):
        calls = [
            lambda: transport.exchange(b""),
            lambda: transport.arena("a", 8),
            transport.seal,
            transport.seal,
        ]
        with pytest.raises(TransportError, match="the same collective call") as caught:
            calls[transport.rank]()
        return str(caught.value)

    answers = layout.run_connected(check)
    assert len(set(answers)) == 1
    assert "got rank 0 exchange, rank 1 arena, rank 2 seal" in answers[0]
