"""What every implementation of the update packages' exchange of fragments must do.

A test module derives from `ExchangeConformance` and provides the fixture ``run``:
``run(world, function)`` calls ``function(exchange)`` on every rank at the same time and returns
the results in rank order.
"""

# ruff: noqa: D102 - the names of tests say what they test

from collections.abc import Callable
from typing import Any

import pytest
import torch

WORLDS = (1, 2, 3, 5)
NBYTES = 1024


def _fill(exchange: Any) -> torch.Tensor:
    buffer: torch.Tensor = exchange.reserve(NBYTES)
    return buffer.copy_(_initial(exchange.rank))


def _initial(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 256, (NBYTES,), dtype=torch.uint8, generator=generator)


def _ring(world: int) -> list[tuple[int, int, int, int, int]]:
    """Rank r sends two pieces to r + 1 and one to r + 2, of odd sizes at odd offsets."""
    messages = []
    for rank in range(world):
        for step, source, target, nbytes in ((1, 0, 512, 7), (1, 65, 700, 130), (2, 300, 900, 33)):
            if step % world:
                messages.append((rank, source, (rank + step) % world, target, nbytes))
    return messages


def _expected(
    before: list[torch.Tensor], messages: list[tuple[int, int, int, int, int]]
) -> list[torch.Tensor]:
    after = [buffer.clone() for buffer in before]
    for source, start, target, to, nbytes in messages:
        after[target][to : to + nbytes] = before[source][start : start + nbytes]
    return after


def _compile(exchange: Any, messages: list[tuple[int, int, int, int, int]]) -> Any:
    from sshsdp_updates import Message

    own = [Message(*m) for m in messages if exchange.rank in (m[0], m[2])]
    return exchange.compile(own)


class ExchangeConformance:
    """Derive, provide ``run``, and all of this is tested."""

    @pytest.fixture
    def run(self) -> Callable[..., list[Any]]:
        raise NotImplementedError("provide the fixture run(world, function)")

    @pytest.mark.parametrize("world", WORLDS)
    def test_exactly_the_named_bytes_move(self, run: Callable[..., list[Any]], world: int) -> None:
        def ring(exchange: Any) -> torch.Tensor:
            buffer = _fill(exchange)
            program = _compile(exchange, _ring(world))
            exchange.start(program)
            exchange.wait(program)
            return buffer.clone()

        expected = _expected([_initial(rank) for rank in range(world)], _ring(world))
        for found, wanted in zip(run(world, ring), expected, strict=True):
            assert torch.equal(found, wanted)

    @pytest.mark.parametrize("world", [2, 3])
    def test_a_program_runs_again_with_what_the_source_holds_then(
        self, run: Callable[..., list[Any]], world: int
    ) -> None:
        def rounds(exchange: Any) -> list[int]:
            buffer = _fill(exchange)
            program = _compile(exchange, _ring(world))
            seen = []
            for value in (1, 2, 3):
                buffer[:512] = value * 10 + exchange.rank
                exchange.start(program)
                exchange.wait(program)
                buffer[:512] = 0  # sources are free again
                seen.append(int(buffer[512]))
            return seen

        for rank, seen in enumerate(run(world, rounds)):
            assert seen == [10 * value + (rank - 1) % world for value in (1, 2, 3)]

    @pytest.mark.parametrize("world", [2, 3])
    def test_two_programs_may_be_under_way(self, run: Callable[..., list[Any]], world: int) -> None:
        first = [(r, 0, (r + 1) % world, 512, 64) for r in range(world)]
        second = [(r, 64, (r + 1) % world, 640, 64) for r in range(world)]

        def both(exchange: Any) -> torch.Tensor:
            buffer = _fill(exchange)
            programs = [_compile(exchange, messages) for messages in (first, second)]
            for program in programs:
                exchange.start(program)
            for program in programs:
                exchange.wait(program)
            return buffer.clone()

        expected = _expected([_initial(rank) for rank in range(world)], first + second)
        for found, wanted in zip(run(world, both), expected, strict=True):
            assert torch.equal(found, wanted)

    @pytest.mark.parametrize("world", [1, 3])
    def test_ranks_without_messages_take_part(
        self, run: Callable[..., list[Any]], world: int
    ) -> None:
        messages = [(0, 0, 1, 512, 16)] if world > 1 else []

        def some(exchange: Any) -> torch.Tensor:
            buffer = _fill(exchange)
            program = _compile(exchange, messages)
            exchange.start(program)
            exchange.wait(program)
            return buffer.clone()

        expected = _expected([_initial(rank) for rank in range(world)], messages)
        for found, wanted in zip(run(world, some), expected, strict=True):
            assert torch.equal(found, wanted)

    @pytest.mark.parametrize("world", WORLDS)
    @pytest.mark.parametrize("op", ["sum", "max"])
    def test_all_reduce_is_bit_equal_on_every_rank(
        self, run: Callable[..., list[Any]], world: int, op: str
    ) -> None:
        def reduce(exchange: Any) -> torch.Tensor:
            generator = torch.Generator().manual_seed(exchange.rank)
            tensor = torch.rand(37, dtype=torch.float64, generator=generator)
            exchange.all_reduce(tensor, op)
            return tensor

        parts = []
        for rank in range(world):
            generator = torch.Generator().manual_seed(rank)
            parts.append(torch.rand(37, dtype=torch.float64, generator=generator))
        stacked = torch.stack(parts)
        wanted = stacked.sum(0) if op == "sum" else stacked.amax(0)
        found = run(world, reduce)
        torch.testing.assert_close(found[0], wanted, rtol=1e-15, atol=0)
        assert all(torch.equal(found[0], other) for other in found)

    @pytest.mark.parametrize("world", WORLDS)
    def test_numbers_that_only_one_rank_has_are_summed_exactly(
        self, run: Callable[..., list[Any]], world: int
    ) -> None:
        def reduce(exchange: Any) -> torch.Tensor:
            tensor = torch.zeros(world, dtype=torch.float64)
            tensor[exchange.rank] = 1 / (3 + exchange.rank)
            exchange.all_reduce(tensor, "sum")
            return tensor

        wanted = torch.tensor([1 / (3 + rank) for rank in range(world)], dtype=torch.float64)
        assert all(torch.equal(found, wanted) for found in run(world, reduce))

    def test_messages_that_cannot_be_are_refused(self, run: Callable[..., list[Any]]) -> None:
        def refused(exchange: Any) -> list[str]:
            exchange.reserve(NBYTES)
            other = 1 - exchange.rank
            texts = []
            for message in (
                (exchange.rank, 0, exchange.rank, 8, 8),
                (exchange.rank, NBYTES - 4, other, 0, 8),
                (exchange.rank, 0, other, 0, 0),
            ):
                try:
                    _compile(exchange, [message])
                except ValueError as error:
                    texts.append(str(error))
            return texts

        for texts in run(2, refused):
            assert len(texts) == 3
            assert all("expected" in text for text in texts)
