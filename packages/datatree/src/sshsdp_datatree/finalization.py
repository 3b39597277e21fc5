"""What must hold for a tree before it can have storage."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .node import DataNode


def check_tree(root: "DataNode") -> None:
    """Check bounds, alignment and names of all nodes.

    Raises:
        ValueError: names the node and what it would have to be.
    """
    for node in root.walk():
        names = set()
        for child in node.children:
            if child.name in names:
                raise ValueError(
                    f"expected children of {node.path!r} with different names, got "
                    f"{child.name!r} twice; rename one"
                )
            names.add(child.name)
            _check_place(node, child)


def _check_place(parent: "DataNode", child: "DataNode") -> None:
    stop = child.byte_offset + child.nbytes
    if child.byte_offset < 0 or stop > parent.nbytes:
        raise ValueError(
            f"expected node {child.path!r} within the {parent.nbytes} bytes of its parent, got "
            f"bytes {child.byte_offset}..{stop}; move it or enlarge the parent"
        )
    itemsize = child.dtype.itemsize
    if child._root_offset % itemsize:
        raise ValueError(
            f"expected node {child.path!r} at a multiple of {itemsize} bytes ({child.dtype}) in "
            f"the root, got {child._root_offset}; change byte_offset={child.byte_offset}"
        )
