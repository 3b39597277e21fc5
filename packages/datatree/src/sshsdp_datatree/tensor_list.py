"""Many tensors of one dtype in one flattened buffer."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

import torch

from .node import DataNode


class TensorList(DataNode):
    """A 1-D node whose members are children with shapes of their own; made by ``build``."""

    _members: Mapping[str, DataNode] = MappingProxyType({})

    @classmethod
    def build(
        cls,
        name: str,
        dtype: torch.dtype,
        members: Sequence[tuple[str, Sequence[int], int]],
        numel: int,
        *,
        parent: DataNode | None = None,
        byte_offset: int = 0,
    ) -> Self:
        """Make the list and its members.

        Args:
            name: of the list.
            dtype: of the list and of every member.
            members: name, shape and offset of each, in elements relative to the list.
            numel: elements of the list, padding included.
            parent: the node whose bytes the list shares; None makes a root.
            byte_offset: of the list, relative to the parent.

        Raises:
            ValueError: a name, shape or offset that no tree can have.
            RuntimeError: the tree of the parent is finalized.
        """
        made = cls(name, (numel,), dtype, parent=parent, byte_offset=byte_offset)
        made._members = MappingProxyType(
            {
                member: DataNode(
                    member, shape, dtype, parent=made, byte_offset=offset * dtype.itemsize
                )
                for member, shape, offset in members
            }
        )
        return made

    @property
    def members(self) -> Mapping[str, DataNode]:
        """The members by name, in order; children added later are not among them."""
        return self._members

    def member(self, name: str) -> DataNode:
        """The node of one member.

        Raises:
            KeyError: no member has this name.
        """
        try:
            return self._members[name]
        except KeyError:
            raise KeyError(
                f"expected one of the {len(self._members)} members of {self.path!r}, got {name!r}; "
                "members are those passed to build()"
            ) from None
