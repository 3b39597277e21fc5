"""The layout planner."""

from collections.abc import Iterable, Iterator, Sequence

from ..chain import ShardChain
from ..choice import Choice
from ..degrees import Degrees
from ..layout import Layout
from ..placements import Placements
from .cost import elements_outside
from .item import Shape
from .member import Member, Pack
from .search import Solution, solve


def plan_layout(
    members: Iterable[Member | Pack],
    degrees: Degrees,
    world: int,
    *,
    align: int = 1,
    budget: float = 0.03,
) -> Layout:
    """Order members and pad between them so that few bytes travel for units that are cut.

    The list is cut at the borders of the ZeRO-1 chunks, where those of ZeRO-2 and ZeRO-3 lie too. A
    unit that is cut is worked on where its largest part lies, and the rest travels. Among the
    layouts that it finds, the planner takes the one with the fewest such bytes, then with the least
    padding, then the first by the names in order; so the result depends neither on the order of
    ``members`` nor on the machine. Nothing is padded or reordered inside a member or a pack.

    The problem contains bin packing, so the search is a heuristic: several chunk sizes and
    orders, every order for up to five members with units. ``layout.choice`` says what
    was chosen, and whether it is known to be optimal.

    Args:
        members: tensors, and packs of tensors that lie together.
        degrees: how the list is cut.
        world: number of ranks.
        align: in elements; every member, pack and ZeRO-1 chunk starts at a multiple of it.
        budget: padding allowed, as a share of the members' elements. Where alignment and even
            chunks alone need more, the smallest list possible is allowed.

    Returns:
        The layout, with ``choice`` set.

    Raises:
        ValueError: ``align`` is below 1 or ``budget`` below 0, a name repeats, or the degrees do
            not fit the world.

    Source: the objective of veScale-FSDP section 5, with a price on cuts that it forbids.
    """
    if align < 1:
        raise ValueError(
            f"expected an alignment of 1 or more elements, got align={align}; "
            "use 1 where members may start anywhere"
        )
    if not budget >= 0:
        raise ValueError(
            f"expected a padding budget of 0 or more, got budget={budget}; 0.03 allows 3%"
        )
    degrees.check_world(world)
    items = sorted(map(_tensors, members), key=lambda item: item[0].name)
    shapes = tuple(tuple(map(_shape, item)) for item in items)
    found = solve(shapes, degrees.zero1, align, budget)
    rows = list(_rows(items, found))
    table = Placements(
        (member.name for member, _ in rows),
        (start for _, start in rows),
        (member.numel for member, _ in rows),
    )
    numel = found.chunk * degrees.zero1
    choice = Choice(
        exchanged=sum(_exchanged(member, start, found.chunk) for member, start in rows),
        exchanged_bytes=found.cost,
        padding=numel - table.numel,
        allowed_padding=found.largest_chunk * degrees.zero1 - table.numel,
        optimal=found.optimal,
        found=found.order,
    )
    return Layout(table, ShardChain(numel, degrees, world), choice)


def _tensors(given: Member | Pack) -> tuple[Member, ...]:
    return given.members if isinstance(given, Pack) else (given,)


def _shape(member: Member) -> Shape:
    unit = min(member.unit, max(member.numel, 1))
    return Shape(member.numel, unit, member.bytes_per_element)


def _exchanged(member: Member, start: int, chunk: int) -> int:
    return elements_outside(start, member.numel, _shape(member).unit, chunk)


def _rows(items: Sequence[tuple[Member, ...]], solution: Solution) -> Iterator[tuple[Member, int]]:
    """Tensors with their starts, packs tight."""
    for index, start in solution.places:
        for member in items[index]:
            yield member, start
            start += member.numel
