"""Trees as text."""

from collections.abc import Iterator, Sequence

from .node import DataNode
from .poison import uncovered

_SHOWN_NAMES = 3


def describe(root: DataNode) -> str:
    """Who shares what, with bytes; for people.

    One line per node, indented below the parent whose bytes it shares. Byte ranges are relative
    to the root. A line also says how many bytes no child covers, and with which siblings the node
    shares some.

    Args:
        root: where to start; any node of a finalized tree.

    Raises:
        RuntimeError: the tree is still building.
    """
    shared: dict[DataNode, list[DataNode]] = {}
    lines = []
    for node in root.walk():
        shared.update(_overlapping(node.children))
        depth = node.path.count("/") - root.path.count("/")
        lines.append("  " * depth + ", ".join(_facts(node, shared.get(node, []))))
    lines[0] += f" ({root.phase})"
    return "\n".join(lines)


def _facts(node: DataNode, siblings: Sequence[DataNode]) -> Iterator[str]:
    dtype = str(node.dtype).removeprefix("torch.")
    stop = node.root_offset + node.nbytes
    yield f"{node.name}: {dtype} {list(node.shape)}, bytes {node.root_offset}..{stop}"
    gaps = sum(stop - start for start, stop in uncovered(node)) if node.children else 0
    if gaps:
        yield f"{gaps} in no child"
    if siblings:
        names = [f"{_common_bytes(node, other)} with {other.name}" for other in siblings]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        yield "shares " + " and ".join(names[:_SHOWN_NAMES]) + more


def _overlapping(siblings: Sequence[DataNode]) -> dict[DataNode, list[DataNode]]:
    """For every sibling that shares bytes with others: those others."""
    found: dict[DataNode, list[DataNode]] = {}
    ordered = sorted((node for node in siblings if node.nbytes), key=lambda node: node.byte_offset)
    for index, node in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if other.byte_offset >= node.byte_offset + node.nbytes:
                break
            found.setdefault(node, []).append(other)
            found.setdefault(other, []).append(node)
    return found


def _common_bytes(one: DataNode, other: DataNode) -> int:
    start = max(one.byte_offset, other.byte_offset)
    return min(one.byte_offset + one.nbytes, other.byte_offset + other.nbytes) - start
