"""What a machine lacks: cores, shared memory, address space; and what killed runs leave on it."""

import os
import resource
import signal
import time
from pathlib import Path

import pytest
from integration.failure.leftovers import children, nothing_stays
from integration.failure.namespaces import NotPermittedError, small_disk
from integration.failure.program import Case, everything, run
from integration.failure.victims import PHASES
from packages.fsdp_runtime.tests.trainer.commands import Command, small_run, steps_of
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime.checkpoint import newest_checkpoint
from sshsdp_fsdp_runtime.checkpoint.folder import staging_folder
from sshsdp_fsdp_runtime.trainer import main, session
from sshsdp_zerosm import TransportError, connect

PATIENCE = 60.0  # seconds, on a machine that does other things too
BY_NAME = {phase.name: phase for phase in PHASES}


def test_eight_ranks_on_few_cores_all_name_the_one_that_is_killed(tmp_path):
    with nothing_stays():
        accounts = run(Case(BY_NAME["reduction"], "kill", 5, world=8), tmp_path)
    for account in accounts[:5] + accounts[6:]:
        assert account.kind == "PeerDiedError"
        assert account.text.startswith("rank 5 died: ")


def with_a_small_dev_shm(rank, folder):
    try:
        small_disk(Path("/dev/shm"), "4k")
    except NotPermittedError as error:
        return str(error)
    everything(rank, folder, 1, 60.0)
    assert os.listdir("/dev/shm") == []
    return ""


def test_a_small_dev_shm_disturbs_nobody(tmp_path):
    """Containers have 64 MiB there; here memory has no name, and lies in no file system."""
    answers = run_ranks(with_a_small_dev_shm, 2, tmp_path)
    if any(answers):
        pytest.skip(f"no file systems of their own for ranks here: {answers}")
    assert newest_checkpoint(tmp_path, contents=True) == tmp_path / "3"


def map_beyond_a_limit(rank):
    with connect(rank.rank, rank.world, rank.store, timeout=60) as transport:
        if rank.rank == 1:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (32 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            transport.arena("large", 24 << 20)
        except TransportError as error:
            return str(error)
    return ""


def test_a_rank_without_address_space_for_the_memory_of_others_is_the_same_error_on_all():
    with nothing_stays():
        first, *others = run_ranks(map_beyond_a_limit, 3)
    assert first.startswith("arena 'large': expected every rank to map it, got rank 1: can't map")
    assert "Cannot allocate memory" in first
    assert others == [first] * 2


def test_a_run_whose_processes_are_all_killed_while_they_save_goes_on_and_tidies_up(
    tmp_path, monkeypatch
):
    save = session.save_checkpoint

    def save_forever(path, model, extra, **kwargs):
        if path.name == "step-00000004":
            staging = staging_folder(path)
            staging.mkdir(exist_ok=True)
            (staging / f"__{model.transport.rank}_0.distcp").write_bytes(b"half")
            time.sleep(PATIENCE)
        return save(path, model, extra, **kwargs)

    monkeypatch.setattr(session, "save_checkpoint", save_forever)
    process = Command(tmp_path, *small_run(tmp_path), "--ranks", "2", "--name", "run")
    half = tmp_path / "runs/run/checkpoints/.step-00000004.unfinished"
    deadline = time.monotonic() + PATIENCE
    while len(list(half.glob("*"))) != 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate(PATIENCE)
    while any(map(runs, ranks)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(runs, ranks))
    monkeypatch.undo()
    run = tmp_path / "runs/run"
    # Other intervals: nobody would save, and so tidy up, at the same step again.
    assert main(["train", "--resume", str(run), "--report.checkpoint-every", "3"]) == 0
    assert list(steps_of(run)) == [1, 2, 3, 4, 5, 6]
    assert not list((run / "checkpoints").glob(".*"))


def runs(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
