"""One way to place all items: in an order, from the left."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from .item import Item


@dataclass(frozen=True, slots=True)
class Attempt:
    """Where everything lies.

    Args:
        places: items with their starts, by ascending start.
        chunk: elements of a ZeRO-1 chunk.
        cost: bytes that travel.
        order: that led here, for people.
    """

    places: tuple[tuple[Item, int], ...]
    chunk: int
    cost: int
    order: str


class Attempting:
    """Places items from the left; where a unit would be cut it may pad, fill, or take another.

    Args:
        items: that are cut at a cost, in the order wanted.
        fillers: that may be cut anywhere, by ascending size.
        chunk: elements of a chunk.
        slack: elements of the list beyond the sizes of all items: what may be padded.
        align: every item starts at a multiple of it.
        fitting: whether another item that fits uncut may be taken first.
    """

    def __init__(
        self,
        items: Sequence[Item],
        fillers: Sequence[Item],
        *,
        chunk: int,
        slack: int,
        align: int,
        fitting: bool,
    ) -> None:
        self._chunk, self._slack, self._align = chunk, slack, align
        self._waiting = list(reversed(items))
        self._sizes = [item.size for item in self._waiting] if fitting else []
        self._fillers = list(fillers)
        self._filler_sizes = [item.size for item in fillers]
        self._places: list[tuple[Item, int]] = []
        self._cursor = 0
        self._cost = 0

    def run(self, order: str) -> Attempt:
        """Place everything."""
        fitting = bool(self._sizes)
        while self._waiting:
            start = self._cursor
            item = self._waiting[-1]
            room = self._chunk - start % self._chunk
            cost = item.cost(start, self._chunk) if item.numel > room else 0
            if cost and fitting:
                index = bisect_right(self._sizes, room) - 1
                if index >= 0:
                    del self._sizes[index]
                    self._put(self._waiting.pop(index))
                    continue
            if cost:
                cost = self._make_way(item, cost)
            self._waiting.pop()
            if fitting:
                self._sizes.pop()
            self._put(item)
            self._cost += cost
        for filler in sorted(self._fillers, key=lambda item: item.index):
            self._put(filler)
        return Attempt(tuple(self._places), self._chunk, self._cost, order)

    def _put(self, item: Item) -> None:
        self._places.append((item, self._cursor))
        self._cursor += item.size

    def _make_way(self, item: Item, cost: int) -> int:
        """Move on to where fewer bytes travel, filling what is left if possible; returns these."""
        best, fillers = (cost, 0), list[int]()
        for exact in item.gaps(self._cursor, self._chunk):
            gap = -(-exact // self._align) * self._align
            filling = self._filling(gap)
            padding = gap - sum(self._filler_sizes[index] for index in filling)
            option = (item.cost(self._cursor + gap, self._chunk), padding)
            if padding <= self._slack and option < best:
                best, fillers = option, filling
        # A filler may also reach across the border.
        index = bisect_right(self._filler_sizes, self._chunk - self._cursor % self._chunk)
        if index < len(self._filler_sizes):
            option = (item.cost(self._cursor + self._filler_sizes[index], self._chunk), 0)
            if option < best:
                best, fillers = option, [index]
        for index in fillers:  # descending, so that the others keep their places
            del self._filler_sizes[index]
            self._put(self._fillers.pop(index))
        cost, padding = best
        self._cursor += padding
        self._slack -= padding
        return cost

    def _filling(self, gap: int) -> list[int]:
        """Fillers for a gap, the largest first; their indices, descending."""
        filling: list[int] = []
        high = len(self._filler_sizes)
        while gap:
            high = bisect_right(self._filler_sizes, gap, hi=high) - 1
            if high < 0:
                break
            filling.append(high)
            gap -= self._filler_sizes[high]
        return filling
