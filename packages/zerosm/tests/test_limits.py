"""The room for memory is the machine's or the tightest cgroup's, whichever is less."""

import pytest

from sshsdp_zerosm.limits import available_bytes

MIB = 1024 * 1024


@pytest.fixture
def system(tmp_path):
    """Writes files below a pretended /proc and /sys/fs/cgroup; asks for the room."""

    def ask(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return available_bytes(tmp_path / "proc", tmp_path / "cgroup")

    return ask


MEMINFO = {"proc/meminfo": "MemTotal: 99999 kB\nMemAvailable:   10240 kB\n"}


def test_without_cgroups_it_is_what_the_machine_has(system):
    assert system(MEMINFO) == 10 * MIB


def test_the_tightest_of_nested_version_2_cgroups_counts_and_cache_is_free(system):
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "cgroup/outer/inner/memory.max": "max\n",
        "cgroup/outer/inner/memory.current": str(5 * MIB),
        "cgroup/outer/memory.max": str(8 * MIB),
        "cgroup/outer/memory.current": str(6 * MIB),
        "cgroup/outer/memory.stat": f"anon 1\ninactive_file {1 * MIB}\n",
    }
    assert system(MEMINFO | files) == 3 * MIB


def test_version_1_cgroups_count_too(system):
    files = {
        "proc/self/cgroup": "7:cpu:/x\n5:memory:/job\n",
        "cgroup/memory/job/memory.limit_in_bytes": str(4 * MIB),
        "cgroup/memory/job/memory.usage_in_bytes": str(3 * MIB),
    }
    assert system(MEMINFO | files) == 1 * MIB


def test_a_used_up_cgroup_leaves_nothing(system):
    files = {
        "proc/self/cgroup": "0::/\n",
        "cgroup/memory.max": str(4 * MIB),
        "cgroup/memory.current": str(5 * MIB),
    }
    assert system(MEMINFO | files) == 0


def test_this_machine_has_some():
    assert 0 < available_bytes() < 2**50
