"""Namespaces of the kernel, for tests that need a small disk or a network that can be cut."""

import ctypes
import os
import subprocess
from pathlib import Path

_NEW_MOUNTS, _NEW_USERS, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class NotPermittedError(Exception):
    """This system lets nobody have namespaces of his own."""


def small_disk(folder: Path, size: str) -> None:
    """Mount an empty file system of `size` on a folder, for this process and its children only."""
    _be_root_in(_NEW_MOUNTS)
    options = f"size={size}".encode()
    _call(_libc.mount(b"none", bytes(folder), b"tmpfs", 0, options))


def own_network() -> None:
    """Leave all networks."""
    _be_root_in(_NEW_NETWORK)


def join_and_own_network(pid: int) -> None:
    """The same, as a user of the namespaces of process `pid`."""
    descriptor = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    try:
        _call(_libc.setns(descriptor, 0))
    finally:
        os.close(descriptor)
    _call(_libc.unshare(_NEW_NETWORK))


def ip(*arguments: str) -> None:
    """Run the command of that name."""
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotPermittedError(f"ip {' '.join(arguments)}: {error}") from error


def _be_root_in(namespaces: int) -> None:
    user, group = os.getuid(), os.getgid()
    _call(_libc.unshare(_NEW_USERS | namespaces))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _call(result: int) -> None:
    if result:
        raise NotPermittedError(os.strerror(ctypes.get_errno()))
