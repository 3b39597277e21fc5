"""Ranks as processes of one host that map each other's memory."""

from sshsdp_zerosm.shared_memory.transport import SharedMemoryTransport

__all__ = ["SharedMemoryTransport"]
