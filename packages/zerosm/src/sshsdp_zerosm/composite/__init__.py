"""Nodes: shared memory inside, a process group between them."""

from sshsdp_zerosm.composite.transport import CompositeTransport

__all__ = ["CompositeTransport"]
