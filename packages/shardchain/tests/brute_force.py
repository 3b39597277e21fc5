"""The planner's oracle: every order, every gap and every chunk size, costs by counting elements."""


def count_outside(start, members, chunk):
    """Bytes of a pack's units outside their largest part; members are (numel, unit, bytes)."""
    cost = 0
    for numel, unit, weight in members:
        for first in range(0, numel, unit):
            held = {}
            for element in range(first, min(first + unit, numel)):
                chunk_of = (start + element) // chunk
                held[chunk_of] = held.get(chunk_of, 0) + 1
            cost += (sum(held.values()) - max(held.values())) * weight
        start += numel
    return cost


def fewest_bytes(packs, chunks, align, budget):
    """The least (bytes that travel, elements of the list) over all layouts within the budget."""
    numel = sum(member[0] for pack in packs for member in pack)
    allowed = numel + int(numel * budget)
    whole = sum(-(-sum(member[0] for member in pack) // align) * align for pack in packs)
    found = []
    for chunk in range(align, max(whole, allowed) + 1, align):
        if found and chunk * chunks > allowed:
            break  # only where nothing fits the budget the smallest list is allowed
        cost = _least_cost(packs, chunk, chunk * chunks, align)
        if cost is not None:
            found.append((cost, chunk * chunks))
    return min(found)


def _least_cost(packs, chunk, end, align):
    """Forward over positions; the state is the set of packs that are placed."""
    everything = (1 << len(packs)) - 1
    reached = {position: {} for position in range(0, end + align + 1, align)}
    reached[0][0] = 0
    costs = []
    for position in range(0, end + 1, align):
        cost_here = [count_outside(position, pack, chunk) for pack in packs]
        for placed, cost in reached[position].items():
            if placed == everything:
                costs.append(cost)
            _lower(reached[position + align], placed, cost)  # a gap
            for index, pack in enumerate(packs):
                numel = sum(member[0] for member in pack)
                if placed >> index & 1 or position + numel > end:
                    continue
                after = position + -(-numel // align) * align
                _lower(reached[after], placed | 1 << index, cost + cost_here[index])
    return min(costs, default=None)


def _lower(costs, placed, cost):
    costs[placed] = min(cost, costs.get(placed, cost))
