"""Traces: what they show of each rank, and one timeline of all."""

import json
from contextlib import nullcontext

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch.autograd import profiler

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard, is_matrix
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_fsdp_runtime.debug import merge_traces, trace
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, labelled
from sshsdp_zerosm import connect

GROUPS = ("layers.0", "layers.1")
LABELS = {
    *(f"forward {group}" for group in GROUPS),
    *(f"gather {group}" for group in GROUPS),
    *(f"{phase} reduce {group}" for phase in ("acquire", "ready") for group in GROUPS),
    *(f"reduce {group}" for group in GROUPS),
    "forward root",
    "finalize gradients",
    "gradient norm",
    "post votes",
    "collect votes",
    "idle",
    "G",
    "gather shards",
    "adamw adamw",
    "muon momentum",
    "muon orthogonalize",
    "checkpoint collect",
    "checkpoint plan",
    "checkpoint write",
    "checkpoint commit",
    "checkpoint check",
    "checkpoint read",
}
WORLD = 2


def step(model):
    ids = torch.arange(12).view(2, 6)
    model(ids).square().mean().backward()
    model.optimizer.step()
    model.optimizer.zero_grad()


def record(rank, folder):
    with connect(rank.rank, WORLD, rank.store, timeout=60) as transport:
        torch.manual_seed(0)
        model = fully_shard(
            TiedModel(depth=2),
            transport=transport,
            form="private",
            sharding=[Sharding("layers.**", Degrees(2, 2, 2)), Sharding("**", Degrees(1, 1, 2))],
            updates=[Update("layers.**", Muon(lr=0.1), where=is_matrix), Update("**", AdamW())],
        )
        step(model)
        hooks = [len(module._forward_hooks) for module in model.modules()]
        with trace(model, folder / f"{rank.rank}.json"):
            step(model)
            save_checkpoint(folder / "saved", model, {})
            load_checkpoint(folder / "saved", model)
        assert [len(module._forward_hooks) for module in model.modules()] == hooks
        model.close()


def events(path):
    return json.loads(path.read_text())["traceEvents"]


def labels(rows):
    ours = [row["name"] for row in rows if row["name"].startswith("sshsdp::")]
    return {name.removeprefix("sshsdp::") for name in ours}


def test_every_stage_is_labelled_on_every_rank_and_in_one_timeline(tmp_path):
    run_ranks(record, WORLD, tmp_path, timeout=120)
    paths = [tmp_path / f"{rank}.json" for rank in range(WORLD)]
    merge_traces(paths, tmp_path / "all.json")
    merged = events(tmp_path / "all.json")
    names = {r["pid"]: r["args"]["name"] for r in merged if r["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0", "rank 1"]
    flows = set()
    for pid, name in names.items():
        own = events(paths[int(name.removeprefix("rank "))])
        assert labels(own) >= LABELS, labels(own)
        assert labels(row for row in merged if row["pid"] == pid) == labels(own)
        ids = {row["id"] for row in merged if row["pid"] == pid and row["ph"] in "stf"}
        assert ids
        assert not ids & flows  # an arrow never leads from one rank to another
        flows |= ids


def test_traces_of_different_starts_are_laid_over_each_other_in_time(tmp_path):
    for rank, base in enumerate((5_000, 3_000)):
        event = {"ph": "X", "name": "x", "ts": 10.0, "dur": 1.0, "pid": rank}
        content = {"baseTimeNanoseconds": base, "traceEvents": [event]}
        (tmp_path / f"{rank}.json").write_text(json.dumps(content))
    merge_traces([tmp_path / "0.json", tmp_path / "1.json"], tmp_path / "all.json")
    assert [row["ts"] for row in events(tmp_path / "all.json")] == [12.0, 10.0]


def test_paths_may_be_text_and_one_that_cannot_be_written_is_refused_before_the_block(tmp_path):
    model = fully_shard(TiedModel(depth=1))
    with trace(model, f"{tmp_path}/0.json"):
        step(model)
    merge_traces([f"{tmp_path}/0.json"], f"{tmp_path}/all.json")
    assert "forward root" in labels(events(tmp_path / "all.json"))
    ran = []
    with pytest.raises(OSError, match="missing"), trace(model, tmp_path / "missing" / "0.json"):
        ran.append(True)
    assert not ran
    with pytest.raises(ValueError, match="one trace or more, got none"):
        merge_traces([], tmp_path / "none.json")
    model.close()


def test_without_a_profiler_labels_are_nothing():
    assert isinstance(labelled("x"), nullcontext)
    with profiler.profile() as recorded, labelled("sshsdp::x"):
        pass
    assert [row.name for row in recorded.function_events] == ["sshsdp::x"]
    assert isinstance(labelled("x"), nullcontext)
