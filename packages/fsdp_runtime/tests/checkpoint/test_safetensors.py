"""Weights as safetensors files: what the format's own library and Hugging Face read and write."""

import copy
import json
import warnings

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from packages.fsdp_runtime.tests.checkpoint.scenes import on_ranks
from packages.fsdp_runtime.tests.checkpoint.test_full_state import BIG, FEW, extra_at_peak, layers
from testing.models import TiedModel

from sshsdp_fsdp_runtime import Cast, Sharding
from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    CheckpointMismatchError,
    export_safetensors,
    load_safetensors,
    safetensors_model,
)
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology

safetensors = pytest.importorskip("safetensors.torch")

WORLDS = [
    (1, None, (1, 1, 1)),
    (3, None, (3, 3, 3)),
    (4, Topology(2, 2), (2, 2, 4)),
    (2, Topology(2, 1), (1, 1, 1)),
]
each_world = pytest.mark.parametrize(("world", "topology", "degrees"), WORLDS)


def model_of(seed):
    torch.manual_seed(seed)
    return TiedModel()


def export(_rank, model, path, options):
    before = copy.copy(model.transport.counters)
    export_safetensors(path, model, **options)
    assert model.transport.counters == before


def load(_rank, model, path):
    before = model.transport.counters.put_bytes
    load_safetensors(path, model)
    assert model.transport.counters.put_bytes == before or model.transport.topology.nodes > 1
    return {name: value.tolist() for name, value in model.full_state_dict().items()}


def options_of(topology, degrees):
    sharding = [Sharding("**", Degrees(*degrees))]
    return {"topology": topology, "sharding": sharding, "formats": [Cast("**", torch.bfloat16)]}


def lists(state):
    return {name: value.tolist() for name, value in state.items()}


@each_world
def test_the_library_reads_what_ranks_have_written(tmp_path, world, topology, degrees):
    model = model_of(1)
    extra = {"metadata": {"note": "first"}, "max_shard_bytes": 10**9}
    options = options_of(topology, degrees)
    on_ranks(world, export, tmp_path, extra, model=model, **options)
    state = safetensors.load_file(tmp_path / "model.safetensors")
    expected = lists(model.state_dict())
    del expected["head.weight"]  # once, under the first name
    assert lists(state) == expected
    wide = {name for name, value in state.items() if value.dtype is torch.float32}
    assert wide == {name for name in expected if not name.endswith(".frozen")}
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        metadata = {"format": "pt", "note": "first", "head.weight": "embedding.weight"}
        assert file.metadata() == metadata
    other = model_of(2)
    safetensors.load_model(other, tmp_path / "model.safetensors")
    assert lists(other.state_dict()) == lists(model.state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@each_world
@pytest.mark.parametrize("name", ["embedding.weight", "head.weight"])
def test_what_the_library_has_written_is_loaded(tmp_path, world, topology, degrees, name):
    model = model_of(3)
    state = dict(model.state_dict())
    del state[name]
    safetensors.save_file(state, tmp_path / "weights.safetensors")
    options = options_of(topology, degrees)
    loaded = on_ranks(world, load, tmp_path / "weights.safetensors", model=model_of(4), **options)
    assert loaded == [lists(model.state_dict())] * world


def test_files_are_bounded_and_indexed(tmp_path):
    model = model_of(5)
    on_ranks(2, export, tmp_path, {"max_shard_bytes": 300}, model=model)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    merged = {}
    for file in files:
        part = safetensors.load_file(tmp_path / file)
        nbytes = sum(value.nbytes for value in part.values())
        assert nbytes <= 300 or len(part) == 1
        assert all(index["weight_map"][name] == file for name in part)
        merged |= part
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in merged.values())
    assert lists(merged | {"head.weight": merged["embedding.weight"]}) == lists(model.state_dict())
    loaded = on_ranks(3, load, tmp_path, model=model_of(6))
    assert loaded == [lists(model.state_dict())] * 3


def test_another_dtype_is_rounded_as_torch_rounds(tmp_path):
    model = model_of(7)
    on_ranks(2, export, tmp_path, {"dtype": torch.bfloat16}, model=model)
    state = safetensors.load_file(tmp_path / "model.safetensors")
    for name, value in state.items():
        assert torch.equal(value, model.state_dict()[name].bfloat16()), name
    loaded = on_ranks(2, load, tmp_path, model=model_of(8))[0]
    assert loaded["gain"] == model.gain.bfloat16().float().tolist()


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn],
)
def test_every_dtype_of_the_format_round_trips(tmp_path, dtype):
    values = torch.arange(12).to(dtype)
    model = CutModel(StoreTransport(0, 1), shapes={})
    entry = CutModel(StoreTransport(0, 1), shapes={"matrix": (3, 4)}).entries[0]
    entries = [("x", values), ("wide", torch.arange(12.0))]
    model.entries = [
        type(entry)(f"model.{name}", (3, 4), value.dtype, 0, 12, value, writes=True)
        for name, value in entries
    ]
    export_safetensors(tmp_path, model)
    state = safetensors.load_file(tmp_path / "model.safetensors")
    assert torch.equal(state["x"].flatten().float(), values.float())
    values.zero_()
    load_safetensors(tmp_path, model)
    assert torch.equal(state["x"].flatten().float(), values.float())


def test_neither_way_takes_memory_for_the_model(tmp_path):
    def scene(rank, model):
        paths = iter([tmp_path / "a", tmp_path / "b"])
        written = extra_at_peak(lambda: export_safetensors(next(paths), model))
        return written, extra_at_peak(lambda: load_safetensors(tmp_path / "a", model))

    big = layers(24, 1024)  # 96 MiB; blocks have 16
    for extra in on_ranks(2, scene, model=big):
        assert max(extra) < 16 * BIG + FEW


def wrong(_rank, model, path):
    before = model.full_state_dict()
    with pytest.raises(CheckpointError) as error:
        load_safetensors(path, model)
    after = model.full_state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    return type(error.value), str(error.value)


def cut(state, path):
    safetensors.save_file(state, path)
    path.write_bytes(path.read_bytes()[:-1])


def renamed(state, path):
    state["other"] = state.pop("gain")
    safetensors.save_file(state, path)


def reshaped(state, path):
    safetensors.save_file({**state, "gain": torch.ones(3)}, path)


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (cut, CheckpointError, "the file is cut off"),
        (renamed, CheckpointMismatchError, "there is no 'gain'; 'other' is not of this model"),
        (reshaped, CheckpointMismatchError, r"'gain' has shape \(3,\) instead of \(2,\)"),
        (lambda _, path: path.write_bytes(b"abc"), CheckpointError, "of the safetensors format"),
        (lambda *_: None, CheckpointError, "model.safetensors.index.json, got"),
    ],
)
def test_other_or_damaged_weights_change_nothing(tmp_path, damage, kind, message):
    state = dict(model_of(9).state_dict())
    del state["head.weight"]
    damage(state, tmp_path / "model.safetensors")
    answers = on_ranks(2, wrong, tmp_path, model=model_of(10))
    assert answers[0] == answers[1]
    assert answers[0][0] is kind
    with pytest.raises(kind, match=message):
        raise kind(answers[0][1])


def test_weights_that_are_there_are_not_overwritten(tmp_path):
    model = CutModel(StoreTransport(0, 1))
    export_safetensors(tmp_path, model)
    with pytest.raises(CheckpointError, match="expected a folder without weights"):
        export_safetensors(tmp_path, model)
    with pytest.raises(ValueError, match="max_shard_bytes >= 1, got 0"):
        export_safetensors(tmp_path / "b", model, max_shard_bytes=0)


def fail_on_one(rank, model, path):
    if rank.rank == 1:

        def fail(*_):
            raise OSError("no space left")

        safetensors_model._write = fail
    with pytest.raises(CheckpointError, match="rank 1: OSError: no space left"):
        export_safetensors(path, model)
    model.transport.barrier()
    return list(path.iterdir())


def test_an_export_that_fails_on_one_rank_leaves_nothing(tmp_path):
    assert on_ranks(2, fail_on_one, tmp_path / "a", model=model_of(1)) == [[], []]


@pytest.mark.parametrize("tied", [True, False])
def test_hugging_face_reads_and_writes_the_same_folder(tmp_path, tied):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=31,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(11)
    model = transformers.LlamaForCausalLM(config)
    on_ranks(2, export, tmp_path / "ours", {"max_shard_bytes": 4000}, model=model)
    config.save_pretrained(tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours")
        assert lists(theirs.state_dict()) == lists(model.state_dict())
        theirs.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    torch.manual_seed(12)
    fresh = transformers.LlamaForCausalLM(config)
    loaded = on_ranks(2, load, tmp_path / "theirs", model=fresh)
    assert loaded == [lists(model.state_dict())] * 2
