"""Anonymous shared files: made, sealed, mapped; gone with the last mapping."""

import fcntl
import mmap
import os

import numpy as np

from sshsdp_zerosm.arena import Memory
from sshsdp_zerosm.errors import TransportError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create(name: str, nbytes: int) -> int:
    """A descriptor of `nbytes` (> 0) zeroed, reserved bytes whose size nobody can change.

    Raises:
        OSError: the memory is not there.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Reserving now makes a lack of memory an error here and not a SIGBUS at some later touch.
        os.posix_fallocate(descriptor, 0, nbytes)
        # A peer that shrinks the file would kill everyone who touches what is gone.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_memory(descriptor: int, nbytes: int) -> mmap.mmap:
    """Map a descriptor from `create`, with its pages present, and close it.

    Raises:
        TransportError: it is not of that size, or not sealed.
    """
    try:
        size = os.fstat(descriptor).st_size
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if size != nbytes or seals & _SEALS != _SEALS:
            raise TransportError(
                f"expected sealed memory of {nbytes} bytes from a peer, got {size} bytes with "
                f"seals {seals:#x}"
            )
        return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(descriptor)


def as_array(mapping: mmap.mmap) -> Memory:
    """The mapping's bytes; the array, and every tensor made from it, keeps the mapping alive."""
    return np.frombuffer(mapping, dtype=np.uint8)
