"""A run folder has one writer at a time; one in which nothing was trained keeps no name taken."""

import contextlib
import os
import shutil
import signal

import pytest
from packages.fsdp_runtime.tests.trainer.commands import small_run, steps_of

from sshsdp_fsdp_runtime.trainer import InputError, main
from sshsdp_fsdp_runtime.trainer.run_lock import locked


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Options of a run, and the folder of one that was done with them."""
    folder = tmp_path_factory.mktemp("finished")
    options = [*small_run(folder), "--ranks", "1", "--name", "run"]
    assert main(options) == 0
    return options, folder / "runs/run"


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, and the options that start one of its name."""
    options, folder = finished
    shutil.copytree(folder, tmp_path / "runs/run")
    return [*options, "--runs", str(tmp_path / "runs")], tmp_path / "runs/run"


@contextlib.contextmanager
def writer(folder):
    """Process id of one that holds the lock of a folder; it is killed at the end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with locked(folder):
            os.write(write, b"!")
            signal.pause()
    os.close(write)
    try:
        assert os.read(read, 1) == b"!"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)


def test_a_run_that_a_process_writes_is_neither_resumed_nor_begun_again(run, capfd):
    options, folder = run
    before = steps_of(folder)
    with writer(folder) as pid:
        for arguments in (["train", "--resume", str(folder), "--steps", "9"], options):
            assert main(arguments) == 2
            error = capfd.readouterr().err
            assert f"got {folder}, which process {pid} is writing; wait for its end" in error
    assert steps_of(folder) == before
    assert main(["train", "--resume", str(folder), "--steps", "7"]) == 0  # it was killed


def test_ranks_hold_the_lock_while_they_live(tmp_path):
    with locked(tmp_path):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    with pytest.raises(InputError, match=r"which .*process.* is writing"), locked(tmp_path):
        pass
    os.close(write)
    os.close(read)
    os.waitpid(pid, 0)
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("killed_early", [False, True])
def test_a_name_is_free_again_when_nothing_was_trained_under_it(run, killed_early):
    options, folder = run
    expected = steps_of(folder)
    for name in ("step-00000004", "step-00000006"):
        (folder / "checkpoints" / name).rename(folder / "checkpoints" / f".{name}.unfinished")
    (folder / "sample.txt").unlink()
    (folder / "plot.png").unlink(missing_ok=True)
    (folder / "metrics.jsonl").write_text("")
    if killed_early:
        (folder / "config.toml").unlink()
        (folder / "metrics.jsonl").unlink()
    assert main(options) == 0
    assert steps_of(folder) == expected
    assert not list((folder / "checkpoints").glob(".*"))


@pytest.mark.parametrize("kept", ["metrics.jsonl", "notes.txt", "checkpoints/step-00000002"])
def test_a_run_with_anything_of_value_keeps_its_name_and_the_way_out_is_named(run, kept, capfd):
    options, folder = run
    shutil.rmtree(folder / "checkpoints")
    (folder / "sample.txt").unlink()
    (folder / "plot.png").unlink(missing_ok=True)
    if kept != "metrics.jsonl":
        (folder / "metrics.jsonl").write_text("")
        (folder / kept).parent.mkdir(exist_ok=True)
        (folder / kept).write_text("")
    assert main(options) == 2
    assert f"or remove {folder} first, which has no checkpoint" in capfd.readouterr().err
    assert main(["train", "--resume", str(folder)]) == 2
    assert f"a new run of another name, or remove {folder} first" in capfd.readouterr().err
    assert (folder / kept).exists()


def test_a_run_that_can_go_on_keeps_its_name(run, capfd):
    options, folder = run
    assert main(options) == 2
    assert f"or continue it with --resume {folder}\n" in capfd.readouterr().err
