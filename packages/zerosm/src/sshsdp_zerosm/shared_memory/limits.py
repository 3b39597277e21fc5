"""How much more memory this process may use."""

from pathlib import Path


def available_bytes() -> int:
    """What the machine has available, or what this process's cgroups leave, if that is less."""
    candidates = [_meminfo()]
    candidates += [room for group in _cgroups() if (room := _room(group)) is not None]
    return max(0, min(candidates))


def _meminfo() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**63 - 1


def _cgroups() -> list[Path]:
    """This process's cgroup folders with a memory controller, innermost first."""
    folders = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = Path("/sys/fs/cgroup")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
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
        limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
        if limit.isdigit() and used.isdigit():
            rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
            reclaimable = sum(int(row[1]) for row in rows if row[0] == cache)
            return int(limit) - int(used) + reclaimable
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
