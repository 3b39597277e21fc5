"""Memory from its creators to all ranks of the node."""

import mmap
import os
from collections.abc import Sequence

from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.shared_memory.memory import create, map_memory
from sshsdp_zerosm.shared_memory.mesh import Mesh


class Handover:
    """Creates memory on some ranks and maps it on all; the same calls on all ranks of the node.

    Args:
        rank: this rank.
        ranks: of the node.
        mesh: connected to all others.
    """

    def __init__(self, rank: int, ranks: Sequence[int], mesh: Mesh) -> None:
        self._rank = rank
        self._ranks = ranks
        self._mesh = mesh
        self._tag = 0

    def run(
        self, name: str, nbytes: int, creators: Sequence[int]
    ) -> tuple[dict[int, mmap.mmap], list[str]]:
        """Each creator makes `nbytes` (> 0) of memory; all ranks map all of it.

        Returns:
            The memories by creator, and what went wrong on this rank (then the memories
            are incomplete). A creator that fails still tells the others, so nobody hangs.
        """
        self._tag += 1
        errors: list[str] = []
        received: dict[int, int | None] = {}
        try:
            if self._rank in creators:
                received[self._rank] = self._create(name, nbytes, errors)
            for creator in creators:
                if creator != self._rank:
                    received[creator] = self._mesh.receive(creator, self._tag)
        except BaseException:
            for descriptor in received.values():
                if descriptor is not None:
                    os.close(descriptor)
            raise
        mappings: dict[int, mmap.mmap] = {}
        for creator in creators:
            descriptor = received[creator]
            if descriptor is None:
                errors.append(f"got no memory from rank {creator}")
                continue
            try:
                mappings[creator] = map_memory(descriptor, nbytes)
            except (OSError, TransportError) as error:
                errors.append(f"can't map the memory of rank {creator} ({error})")
        return mappings, errors

    def _create(self, name: str, nbytes: int, errors: list[str]) -> int | None:
        """Make this rank's memory and hand it to the others; None, and why, if there is none."""
        descriptor = None
        try:
            descriptor = create(name, nbytes)
        except OSError as error:
            errors.append(f"can't reserve {nbytes} bytes ({error})")
        try:
            for peer in self._ranks:
                if peer != self._rank:
                    self._mesh.send(peer, self._tag, descriptor)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        return descriptor
