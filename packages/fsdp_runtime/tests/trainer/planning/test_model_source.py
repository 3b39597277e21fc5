"""Models are read from files, configurations and functions alike, and never get any weights."""

import json
import sys

import pytest
import torch
from torch import nn

from sshsdp_fsdp_runtime import ModelSpec
from sshsdp_fsdp_runtime.trainer import Decoder, InputError
from sshsdp_fsdp_runtime.trainer.planning import parse_shapes, read_model
from sshsdp_fsdp_runtime.trainer.sizes import named_shape

QWEN = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


class Tower(nn.Module):
    """What `module:callable` finds in this file."""

    def __init__(self, width=2**20):
        super().__init__()
        self.up = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)
        self.down.weight = self.up.weight


def three():
    return 3


def broken():
    raise RuntimeError("no such GPU")


@pytest.fixture
def config(tmp_path):
    pytest.importorskip("transformers")
    return tmp_path / "config.json"


@pytest.mark.parametrize("name", ["nano", "tiny-moe"])
def test_a_named_size_is_the_trainers_own_model(name):
    shape = named_shape(name, vocab=256, context=256)
    assert read_model(name) == ModelSpec.of(Decoder(shape))


@pytest.fixture
def here(monkeypatch):
    """The name under which a user would import this file."""
    monkeypatch.setitem(sys.modules, "tower", sys.modules[__name__])
    return "tower"


def test_a_function_builds_a_model_of_terabytes(here):
    spec = read_model(f"{here}:Tower")
    (weight,) = spec.parameters
    assert weight.aliases == ("up.weight", "down.weight")
    assert weight.numel == 2**40


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("three", "expected an nn.Module from 'tower:three', got int"),
        ("broken", "got RuntimeError: no such GPU"),
        ("QWEN", "expected 'tower:QWEN' to be callable, got dict"),
        ("absent", "got 'tower:absent': module .* has no attribute 'absent'"),
        ("", "got 'tower:'"),
    ],
)
def test_a_function_that_gives_no_model_is_refused(here, name, text):
    with pytest.raises(InputError, match=text):
        read_model(f"{here}:{name}")


def test_a_module_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"got 'nowhere.x:y': No module named 'nowhere'"):
        read_model("nowhere.x:y")


def test_the_working_folder_counts(tmp_path, monkeypatch):
    (tmp_path / "folder_model.py").write_text("import torch\nm = lambda: torch.nn.Linear(2, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert [p.name for p in read_model("folder_model:m").parameters] == ["weight", "bias"]


def test_a_hugging_face_configuration_gives_the_shapes_of_its_model(config):
    config.write_text(json.dumps(QWEN))
    before = torch.get_default_dtype()
    spec = read_model(str(config))
    assert torch.get_default_dtype() == before
    # By hand: attention, router, experts and norms of three layers, two embeddings, a norm.
    layer = 2 * 4096 * 2048 + 2 * 512 * 2048 + 128 * 2048 + 128 * 3 * 768 * 2048
    layer += 2 * 2048 + 2 * 128
    assert sum(p.numel for p in spec.parameters) == 3 * layer + 2 * 151936 * 2048 + 2048
    assert {p.dtype for p in spec.parameters} == {torch.bfloat16}
    assert read_model(str(config.parent)) == spec


def test_tied_embeddings_are_one_parameter(config):
    config.write_text(json.dumps(QWEN | {"tie_word_embeddings": True}))
    tied = [p for p in read_model(str(config)).parameters if len(p.aliases) > 1]
    assert [p.aliases for p in tied] == [("model.embed_tokens.weight", "lm_head.weight")]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"model_type": "nosuch"}, "can't build this model: Unrecognized model identifier"),
        ({"hidden_size": 3}, "expected a model_type, as Hugging Face writes it, got None"),
        ([], "expected a JSON object"),
    ],
)
def test_a_bad_configuration_is_refused(config, content, text):
    config.write_text(json.dumps(content))
    with pytest.raises(InputError, match=text):
        read_model(str(config))


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"pip install 'sshsdp-fsdp-runtime\[huggingface\]'"):
        read_model(str(tmp_path))


@pytest.mark.parametrize("source", ["tin", "llama.tml", ""])
def test_what_names_no_model_gets_the_list_of_what_does(source):
    with pytest.raises(InputError, match=r"config.json, package.module:callable or one of"):
        read_model(source)


def test_files_that_are_not_there_are_named(tmp_path):
    for name in ("a.toml", "config.json"):
        with pytest.raises(InputError, match=f"{name}, which does not exist"):
            read_model(str(tmp_path / name))


def test_shapes_need_no_memory():
    spec = parse_shapes({"parameters": {"w": [2**40, 2**20]}})
    assert spec.parameters[0].numel == 2**60
