"""How much more memory this process may use."""

from pathlib import Path


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What the machine has available, or what this process's cgroups leave, if that is less."""
    rooms = (_room(group) for group in _folders(proc, cgroups))
    return max(0, min([_meminfo(proc), *(room for room in rooms if room is not None)]))


def _meminfo(proc: Path) -> int:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**63 - 1


def _folders(proc: Path, cgroups: Path) -> list[Path]:
    """This process's cgroup folders with a memory controller, innermost first."""
    folders = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = cgroups
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
        else:
            continue
        inner = root / path.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return folders


def _room(folder: Path) -> int | None:
    """Limit minus use of one cgroup, its file cache counted as free; None without a limit."""
    for limit_name, used_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        # Asked for every arena, and most groups have no limit: nothing more is read of those.
        limit = _read(folder / limit_name).strip()
        if limit.isdigit() and (used := _read(folder / used_name).strip()).isdigit():
            rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
            reclaimable = sum(int(row[1]) for row in rows if row[0] == cache)
            return int(limit) - int(used) + reclaimable
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
