"""Ranks that somebody else started find each other by torchrun's variables."""

import signal
import socket
import time

import pytest
from packages.fsdp_runtime.tests.trainer.commands import Command, small_run, steps_of

from sshsdp_fsdp_runtime.trainer import InputError, TrainConfig, main
from sshsdp_fsdp_runtime.trainer.seat import resolve_ranks, torchrun_world


def start_ranks(folder, *arguments):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [Command(folder, *arguments, RANK=str(rank), **common) for rank in range(2)]


def test_they_train_as_forked_ranks_do(tmp_path):
    first, second = start_ranks(tmp_path, *small_run(tmp_path), "--name", "joined")
    output, error = first.communicate(timeout=120)
    silence, second_error = second.communicate(timeout=30)
    assert (first.returncode, second.returncode) == (0, 0), error + second_error
    assert output.splitlines()[-1].startswith("done: steps=6 ")
    assert silence == ""
    assert main([*small_run(tmp_path), "--ranks", "2", "--name", "forked"]) == 0
    assert steps_of(tmp_path / "runs/joined") == steps_of(tmp_path / "runs/forked")


def test_bad_data_ends_all_ranks_alike(tmp_path):
    processes = start_ranks(tmp_path, *small_run(tmp_path), "--data", "/absent")
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "got /absent, which does not exist" in error


@pytest.mark.parametrize("ask_both", [False, True])
def test_a_signal_to_any_rank_ends_all_of_them(tmp_path, ask_both):
    processes = start_ranks(tmp_path, *small_run(tmp_path), "--steps", "100000", "--name", "run")
    while "step " not in processes[0].read()[0]:
        assert processes[0].poll() is None
        time.sleep(0.02)
    for process in processes if ask_both else processes[1:]:
        process.send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [143, 143], outputs


def test_ranks_come_from_the_launcher_then_the_option_then_two():
    assert resolve_ranks(TrainConfig(), None).ranks == 2
    assert resolve_ranks(TrainConfig(ranks=4), None).ranks == 4
    assert resolve_ranks(TrainConfig(), 8).ranks == 8
    with pytest.raises(InputError, match="expected ranks = 8 under torchrun, got 4"):
        resolve_ranks(TrainConfig(ranks=4), 8)


def test_half_of_the_variables_is_an_error():
    assert torchrun_world({"MASTER_ADDR": "left over"}) is None
    with pytest.raises(InputError, match="got no MASTER_ADDR, MASTER_PORT"):
        torchrun_world({"RANK": "0", "WORLD_SIZE": "2"})
