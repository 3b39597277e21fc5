"""A save that is killed, at whatever moment, leaves every earlier checkpoint as it was."""

import os
import signal
import sys

import pytest
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)

_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.scandir"}
NEVER = 10**9


def count_down(folder, moment):
    """Kill this process at its `moment`-th look at or change of `folder`; the count so far."""
    seen = [0]

    def hook(event, arguments):
        if event in _EVENTS and any(str(folder) in str(argument) for argument in arguments):
            seen[0] += 1
            if seen[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def save_until(rank, root, moment, dies, asynchronous):
    transport = StoreTransport(rank.rank, rank.world, rank.store, timeout=1.5)
    model = CutModel(transport)
    seen = count_down(root, moment if rank.rank in dies else NEVER)
    try:
        save_checkpoint(root / "b", model, {"step": 2}, asynchronous=asynchronous).wait()
    except Exception:  # of whatever a dead rank left undone
        assert moment != NEVER
    return seen[0]


def check(root):
    """Both checkpoints that may be there are whole, and `a` is."""
    found = newest_checkpoint(root, contents=True)
    assert found in (root / "a", root / "b")
    for path in {root / "a", found}:
        model = CutModel(StoreTransport(0, 1), filled=False)
        load_checkpoint(path, model)
        model.assert_exact()
    if found == root / "a":
        assert not (root / "b").exists()


@pytest.fixture
def root(tmp_path):
    save_checkpoint(tmp_path / "a", CutModel(StoreTransport(0, 1)), {"step": 1})
    return tmp_path


def moments(tmp_path, world, asynchronous):
    """How many moments each rank has in a save that nobody disturbs."""
    return run_ranks(save_until, world, tmp_path / "count", NEVER, (), asynchronous)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_rank_killed_at_every_moment(root, tmp_path_factory, asynchronous):
    (total,) = moments(tmp_path_factory.mktemp("count"), 1, asynchronous)
    assert total > 15
    for moment in range(1, total + 1):
        run_ranks(save_until, 1, root, moment, (0,), asynchronous, expect_death=(0,))
        check(root)
        if (root / "b").exists():
            (root / "b").rename(root.parent / f"{root.name}-{moment}")
    # What the killed saves left behind is no obstacle.
    run_ranks(save_until, 1, root, NEVER, (), asynchronous)
    assert newest_checkpoint(root) == root / "b"
    assert sorted(os.listdir(root)) == ["a", "b"]


@pytest.mark.parametrize(
    ("dies", "stride"),
    [
        pytest.param((0, 1), 5, id="all", marks=pytest.mark.full),
        pytest.param((0,), 9, id="first"),
        pytest.param((1,), 3, id="second", marks=pytest.mark.full),
        pytest.param((1,), 6, id="second, seldom"),
    ],
)
def test_ranks_killed_at_many_moments(root, tmp_path_factory, dies, stride):
    total = max(moments(tmp_path_factory.mktemp("count"), 2, False)[rank] for rank in dies)
    for moment in range(1, total + 1, stride):
        run_ranks(save_until, 2, root, moment, dies, False, expect_death=dies)
        check(root)
        if (root / "b").exists():
            (root / "b").rename(root.parent / f"{root.name}-{moment}")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata"])
def test_a_changed_bit_is_found_before_anything_is_loaded(root, caplog, file):
    save_checkpoint(root / "b", CutModel(StoreTransport(0, 1)), {"step": 2})
    flip(root / "b" / file)
    model = CutModel(StoreTransport(0, 1), filled=False)
    with pytest.raises(CheckpointError, match=rf"{file} with checksum \w+ in .*/b, which is inc"):
        load_checkpoint(root / "b", model)
    assert all(entry.tensor.isnan().all() for entry in model.entries)
    small = file == ".metadata"  # read in any case
    assert newest_checkpoint(root) == root / ("a" if small else "b")
    assert len(caplog.messages) == small
    assert newest_checkpoint(root, contents=True) == root / "a"
    assert f"checkpoint passed over: expected {file} with checksum" in caplog.text


def test_a_torn_checkpoint_is_passed_over_with_a_warning_and_strangers_without(root, caplog):
    save_checkpoint(root / "b", CutModel(StoreTransport(0, 1)), {"step": 2})
    os.truncate(root / "b" / "__0_0.distcp", 99)
    (root / "notes").mkdir()
    assert newest_checkpoint(root) == root / "a"
    (message,) = caplog.messages
    assert "which is incomplete: the file is 99 bytes long" in message


def load_damaged(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store), filled=False)
    with pytest.raises(CheckpointError, match="with checksum"):
        load_checkpoint(path, model)
    with pytest.raises(CheckpointError, match="the file is missing"):
        load_checkpoint(path.with_name("a"), model, verify=False)


def test_ranks_share_the_checking_and_all_hear_of_damage(root):
    save_checkpoint(root / "b", CutModel(StoreTransport(0, 1)), {"step": 2})
    flip(root / "b" / "__0_0.distcp")
    (root / "a" / "__0_0.distcp").unlink()
    run_ranks(load_damaged, 3, root / "b")
