"""A save goes on while training does; it holds what was there when it was asked for."""

import gc
import os
import resource
import threading
import time
import weakref

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from packages.fsdp_runtime.tests.checkpoint.scenes import on_ranks
from packages.fsdp_runtime.tests.runtime.scenes import ids
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch.nn import functional

from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from sshsdp_fsdp_runtime.runtime import FragmentTensor
from sshsdp_zerosm import Topology


def held(monkey_event):
    """Writing waits for the event: shards are handed out while files are written."""
    original = FragmentTensor.__get_tensor_shard__

    def wait(self, index):
        assert monkey_event.wait(30)
        return original(self, index)

    FragmentTensor.__get_tensor_shard__ = wait


def train(model, steps):
    for step in steps:
        loss = functional.cross_entropy(model(ids(step)).flatten(0, 1), ids(step + 9).flatten())
        loss.backward()
        model.optimizer.step()
        model.optimizer.zero_grad()


def values(model):
    full = {name: value.tolist() for name, value in model.full_state_dict().items()}
    return full, model.checkpoint_scalars()


def save_and_train_on(_rank, model, path):
    train(model, range(2))
    then = values(model)
    goes_on = threading.Event()
    held(goes_on)
    kept = torch.arange(3)
    pending = save_checkpoint(path, model, {"step": 2, "kept": kept}, asynchronous=True)
    kept.zero_()
    train(model, range(2, 4))
    assert not pending.done()
    assert not path.exists()
    assert values(model) != then
    goes_on.set()
    assert pending.wait() == path
    assert pending.done()
    assert pending.wait() == path
    return then


def load(_rank, model, path):
    extra = load_checkpoint(path, model)
    assert extra["kept"].tolist() == [0, 1, 2]
    return values(model)


@pytest.mark.parametrize("topology", [None, Topology(2, 1)], ids=["node", "nodes"])
def test_it_holds_the_values_of_the_call_although_training_went_on(tmp_path, topology):
    path = tmp_path / "saved"
    saved = on_ranks(2, save_and_train_on, path, model=TiedModel(), topology=topology)
    assert on_ranks(2, load, path, model=TiedModel()) == saved
    assert os.listdir(tmp_path) == ["saved"]


def save_in_a_row(rank, root):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store))
    before = set(threading.enumerate())
    for step in range(4):
        save_checkpoint(root / str(step), model, {"step": step}, asynchronous=True)
        assert len(set(threading.enumerate()) - before) <= 1
        assert all((root / str(done)).is_dir() for done in range(step))
    save_checkpoint(root / "last", model, {"step": 9})
    assert set(threading.enumerate()) == before


def test_one_is_in_flight_and_the_next_save_waits_for_it(tmp_path):
    run_ranks(save_in_a_row, 2, tmp_path)
    assert newest_checkpoint(tmp_path) == tmp_path / "last"
    for name in ("0", "3"):
        model = CutModel(StoreTransport(0, 1), filled=False)
        load_checkpoint(tmp_path / name, model)
        model.assert_exact()


def fail(*_):
    raise OSError("no space left")


def fail_in_the_background(rank, root, fails):
    transport = StoreTransport(rank.rank, rank.world, rank.store)
    model = CutModel(transport)
    save_checkpoint(root / "good", model, {"step": 1})
    original = FragmentTensor.__get_tensor_shard__
    if rank.rank == fails:
        FragmentTensor.__get_tensor_shard__ = fail
    pending = save_checkpoint(root / "waited", model, {"step": 2}, asynchronous=True)
    texts = []
    for _ in range(2):
        with pytest.raises(CheckpointError) as error:
            pending.wait()
        texts.append(str(error.value))
    save_checkpoint(root / "forgotten", model, {"step": 3}, asynchronous=True)
    with pytest.raises(CheckpointError) as error:
        save_checkpoint(root / "next", model, {"step": 4})
    FragmentTensor.__get_tensor_shard__ = original
    transport.barrier()
    left = sorted(os.listdir(root))
    transport.barrier()
    save_checkpoint(root / "next", model, {"step": 4})
    return texts, str(error.value), left


@pytest.mark.parametrize("fails", [0, 1])
def test_errors_surface_at_wait_or_at_the_next_save_on_every_rank(tmp_path, fails):
    expected = f"rank {fails}: OSError: no space left"
    said = f"the save to {tmp_path}/forgotten, which went on in the background, failed: {expected}"
    answers = run_ranks(fail_in_the_background, 3, tmp_path, fails)
    assert answers == [([expected] * 2, said, ["good"])] * 3
    assert newest_checkpoint(tmp_path) == tmp_path / "next"


def fail_before_another_writes(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store))
    original = FragmentTensor.__get_tensor_shard__

    def late(self, index):
        while path.with_name(f".{path.name}.unfinished").exists():
            time.sleep(0.01)
        return original(self, index)

    FragmentTensor.__get_tensor_shard__ = {0: original, 1: late, 2: fail}[rank.rank]
    with pytest.raises(CheckpointError) as error:
        save_checkpoint(path, model, {}, asynchronous=True).wait()
    return str(error.value)


def test_the_rank_that_failed_is_named_and_not_one_that_then_found_no_folder(tmp_path):
    answers = run_ranks(fail_before_another_writes, 3, tmp_path / "saved")
    assert answers == ["rank 2: OSError: no space left"] * 3
    assert os.listdir(tmp_path) == []


def fail_without_room_to_say_so(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store))
    if rank.rank == 1:
        limit = (100, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with pytest.raises(CheckpointError) as error:
        save_checkpoint(path, model, {}, asynchronous=True).wait()
    return str(error.value)


def test_a_rank_whose_disk_is_full_says_so_though_not_even_that_can_be_written(tmp_path):
    answers = run_ranks(fail_without_room_to_say_so, 2, tmp_path / "saved")
    assert answers == ["rank 1: OSError: [Errno 27] File too large"] * 2
    assert os.listdir(tmp_path) == []


def end_without_waiting(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store))
    slow = FragmentTensor.__get_tensor_shard__

    def later(self, index):
        time.sleep(0.02)
        return slow(self, index)

    FragmentTensor.__get_tensor_shard__ = later
    save_checkpoint(path, model, {}, asynchronous=True)


def test_a_process_that_ends_finishes_its_save_first(tmp_path):
    run_ranks(end_without_waiting, 2, tmp_path / "saved")
    model = CutModel(StoreTransport(0, 1), filled=False)
    load_checkpoint(tmp_path / "saved", model)
    model.assert_exact()


def test_a_save_that_nobody_waits_for_keeps_no_model_alive(tmp_path):
    model = CutModel(StoreTransport(0, 1))
    transport = weakref.ref(model.transport)
    pending = save_checkpoint(tmp_path / "saved", model, {}, asynchronous=True)
    while not pending.done():
        time.sleep(0.01)
    del model
    gc.collect()
    assert transport() is None
    assert pending.wait() == tmp_path / "saved"


def die_in_the_background(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store, timeout=1.0))
    if rank.rank == 1:
        FragmentTensor.__get_tensor_shard__ = lambda *_: os._exit(9)
    pending = save_checkpoint(path, model, {}, asynchronous=True)
    deadline = time.monotonic() + 20
    while not pending.done() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pending.done()
    with pytest.raises(Exception, match=r"[Tt]imeout|timed out"):
        pending.wait()


def fail_while_another_writes(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store, timeout=60.0))
    if rank.rank == 1:
        FragmentTensor.__get_tensor_shard__ = lambda *_: os._exit(9)
    pending = save_checkpoint(path, model, {}, asynchronous=True)
    model.transport.failed = True  # as training finds out
    start = time.monotonic()
    while not pending.done():
        time.sleep(0.05)
    return time.monotonic() - start


def test_a_rank_that_knows_of_a_failure_does_not_wait_out_its_timeout_at_the_end(tmp_path):
    seconds, _ = run_ranks(fail_while_another_writes, 2, tmp_path / "saved", expect_death=(1,))
    assert seconds < 20
    assert os.listdir(tmp_path) == []


def test_rank_0_does_not_wait_for_the_dead(tmp_path):
    run_ranks(die_in_the_background, 2, tmp_path / "saved", expect_death=(1,))
    assert os.listdir(tmp_path) == []
