"""The best of many attempts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

from .attempt import Attempt, Attempting
from .chunk_sizes import bounds, chunk_sizes
from .item import Item, Shape

_WORK = 80_000  # placements of one item; keeps plans of a few members within 0.2 s
_LEAST_ATTEMPTS = 9  # of however many members
_PERMUTED = 5  # members, up to which every order is tried
_LEAST_ORDERS = 3  # of however many chunk sizes
_SHRINKS = 4


@dataclass(frozen=True, slots=True)
class _Order:
    """Items in an order; ``fitting``: those that fit a chunk uncut may go before their turn.

    For that the items must come by descending size.
    """

    name: str
    items: Sequence[Item]
    fitting: bool = False


@dataclass(frozen=True, slots=True)
class Solution:
    """What the search found, and what it knows about it.

    Args:
        places: index and start of every item, by ascending start.
        chunk: elements of a ZeRO-1 chunk.
        largest_chunk: that the budget allows.
        cost: bytes that travel.
        optimal: whether nothing within the budget is better.
        order: that led here, for people.
    """

    places: tuple[tuple[int, int], ...]
    chunk: int
    largest_chunk: int
    cost: int
    optimal: bool
    order: str


@lru_cache(maxsize=16)  # the layers of a model differ in names only
def solve(
    shapes: tuple[tuple[Shape, ...], ...], chunks: int, align: int, budget: float
) -> Solution:
    """Place items, given by the order of their names.

    Args:
        shapes: of each item.
        chunks: how many the list is cut into.
        align: every item and every chunk starts at a multiple of it.
        budget: share of the elements that may be padding.
    """
    items = [Item.of(index, item, align) for index, item in enumerate(shapes)]
    search = _Search(items, chunks, align, budget)
    best = search.best()
    # Units larger than any chunk lose least in the largest: then no smaller one is as good.
    smallest = best.chunk == search.low or search.least_cost > 0
    return Solution(
        places=tuple((item.index, start) for item, start in best.places),
        chunk=best.chunk,
        largest_chunk=search.high,
        cost=best.cost,
        optimal=best.cost == search.least_cost and smallest,
        order=best.order,
    )


class _Search:
    """All ways to place items that are worth a try."""

    def __init__(self, items: Sequence[Item], chunks: int, align: int, budget: float) -> None:
        self._chunks, self._align = chunks, align
        self._size = sum(item.size for item in items)
        self.low, self.high = bounds(items, chunks, align, budget)
        divisible = [item for item in items if item.unit == 1]
        # Of equal ones the last is taken first: that with the first name.
        self._fillers = sorted(divisible, key=lambda item: (item.size, -item.index))
        self._movable = [item for item in items if item.unit > 1]
        self._orders = list(self._named_orders())
        self.least_cost = sum(item.least_cost(self.high) for item in self._movable)

    def best(self) -> Attempt:
        """Fewest bytes, then the smallest list, then the order of names."""
        best: Attempt | None = None
        for chunk, order in self._tries():
            found = self._attempt(chunk, order)
            if best is None or _rank(found) < _rank(best):
                best, way = found, order
            if best.cost == self.least_cost and best.chunk == chunk:
                break  # chunks only grow from here
        assert best is not None  # the smallest chunk with the first order is always tried
        return self._shrunk(best, way)

    def _named_orders(self) -> Iterator[_Order]:
        """By name, which wins among equals, then the most promising first."""
        items = self._movable
        by_unit = sorted(items, key=lambda item: (-item.unit, -item.numel))
        by_size = sorted(items, key=lambda item: (-item.numel, -item.unit))
        yield _Order("by name", items)
        yield _Order("by unit", by_unit)
        yield _Order("by size, filling chunks", by_size, fitting=True)
        yield _Order("by size", by_size)
        if 1 < len(items) <= _PERMUTED:
            yield from (_Order("of all orders", order) for order in permutations(items))

    def _tries(self) -> Iterator[tuple[int, _Order]]:
        """Chunks, ascending, each with orders; as many as the work allows."""
        attempts = max(_LEAST_ATTEMPTS, _WORK // (len(self._movable) + self._chunks))
        sizes = chunk_sizes(self._movable, self.low, self.high, self._align)
        orders = self._orders[: max(attempts // len(sizes), _LEAST_ORDERS)]
        for chunk in sorted(sizes[: max(attempts // len(orders), 1)]):
            for order in orders:
                yield chunk, order

    def _attempt(self, chunk: int, order: _Order) -> Attempt:
        attempting = Attempting(
            order.items,
            self._fillers,
            chunk=chunk,
            slack=chunk * self._chunks - self._size,
            align=self._align,
            fitting=order.fitting,
        )
        return attempting.run(order.name)

    def _shrunk(self, best: Attempt, order: _Order) -> Attempt:
        """The same order with a smaller chunk, as long as no more bytes travel."""
        low, high = self.low // self._align, best.chunk // self._align
        for _ in range(_SHRINKS):
            if low >= high:
                break
            middle = (low + high) // 2
            found = self._attempt(middle * self._align, order)
            if _rank(found) < _rank(best):
                best, high = found, middle
            else:
                low = middle + 1
        return best


def _rank(attempt: Attempt) -> tuple[int, int, list[int]]:
    return attempt.cost, attempt.chunk, [item.index for item, _ in attempt.places]
