"""Pieces move between any ranks, as few messages as they can be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_zerosm import Loopback, Put, Region, Signal, Topology, exchange

TOPOLOGY = Topology(2, 2)


def moves_of(pieces):
    return [
        (Region("from", source, start, nbytes), Region("to", target, stop, nbytes))
        for source, start, target, stop, nbytes in pieces
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0))
def test_every_piece_arrives_in_any_interleaving(data, seed):
    ranks = st.integers(0, 3)
    cells = data.draw(st.lists(st.tuples(ranks, st.integers(0, 7)), unique=True, max_size=24))
    pieces = [
        (data.draw(ranks), 4 * data.draw(st.integers(0, 7)), rank, 4 * place, 4)
        for rank, place in cells
    ]
    loopback = Loopback(4, topology=TOPOLOGY)
    sources = [transport.arena("from", 32).tensor() for transport in loopback.transports]
    targets = [transport.arena("to", 32).tensor() for transport in loopback.transports]
    schedule = exchange("x", moves=moves_of(pieces), topology=TOPOLOGY)
    programs = [transport.compile(schedule) for transport in loopback.transports]
    for turn in range(2):
        for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
            source.copy_(torch.arange(32) + 32 * rank + turn)
            target.zero_()
        expected = [target.clone() for target in targets]
        for source, start, target, stop, nbytes in pieces:
            expected[target][stop:][:nbytes] = sources[source][start:][:nbytes]
        loopback.run(programs, "exchange", seed=seed)
        assert all(map(torch.equal, targets, expected))


def test_what_lies_side_by_side_is_one_message_and_each_pair_one_signal():
    pieces = [
        (0, 8, 2, 24, 8),
        (0, 0, 2, 16, 8),
        (0, 16, 2, 8, 8),
        (0, 16, 2, 40, 8),
        (0, 0, 3, 0, 8),
    ]
    ops = exchange("x", moves=moves_of(pieces), topology=TOPOLOGY).ops("exchange", 0)
    assert [op for op in ops if isinstance(op, Put)] == [
        Put(Region("from", 0, 16, 8), Region("to", 2, 8, 8)),
        Put(Region("from", 0, 0, 16), Region("to", 2, 16, 16)),
        Put(Region("from", 0, 16, 8), Region("to", 2, 40, 8)),
        Put(Region("from", 0, 0, 8), Region("to", 3, 0, 8)),
    ]
    assert [op for op in ops if isinstance(op, Signal)] == [Signal("x.sent", (2, 3))]


def test_nothing_to_move_and_uninvolved_ranks_are_legal():
    schedule = exchange("x", moves=moves_of([(0, 0, 1, 0, 0), (2, 0, 3, 0, 8)]), topology=TOPOLOGY)
    assert schedule.ops("exchange", 0) == schedule.ops("exchange", 1) == ()
    assert exchange("y", moves=[], topology=TOPOLOGY).ops("exchange", 3) == ()


def test_moves_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="expected equally long regions"):
        exchange("x", moves=[(Region("a", 0, 0, 8), Region("a", 1, 0, 4))], topology=TOPOLOGY)
    with pytest.raises(ValueError, match="expected ranks below 4"):
        exchange("x", moves=[(Region("a", 0, 0, 8), Region("a", 4, 0, 8))], topology=TOPOLOGY)
