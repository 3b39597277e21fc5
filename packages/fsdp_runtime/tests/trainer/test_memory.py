"""Memory is what the kernel says, and the peak stays."""

import mmap
import resource

import pytest

from sshsdp_fsdp_runtime.trainer.memory import MemoryWatch, read_memory

MIB = 1 << 20


def test_memory_is_close_to_what_the_kernel_says_elsewhere():
    memory = read_memory()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    assert memory.rss == pytest.approx(resident, abs=8 * MIB)
    assert 0 < memory.pss <= memory.rss


def test_the_peak_stays_when_the_memory_is_gone():
    watch = MemoryWatch(interval=0.0)
    before = watch.latest.pss
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"x" * (64 * MIB))
        watch.sample()
    watch.sample()
    assert watch.peak_pss - before > 60 * MIB
    assert watch.latest.pss - before < 30 * MIB


def test_samples_keep_their_distance():
    watch = MemoryWatch(interval=1000.0)
    watch.sample()
    first = watch.latest
    watch.sample()
    assert watch.latest is first


def test_without_proc_the_peak_rss_stands_in(monkeypatch, tmp_path):
    monkeypatch.setattr("sshsdp_fsdp_runtime.trainer.memory._STATUS", tmp_path / "absent")
    memory = read_memory()
    assert memory.rss == memory.pss > 10 * MIB
