"""The shapes in `models/` have the sizes that the paper states, and are those of public models."""

import json
from pathlib import Path

import pytest

from sshsdp_fsdp_runtime.trainer.planning import read_model

FOLDER = Path(__file__).parent / "models"


def elements(parameters):
    return sum(parameter.numel for parameter in parameters)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("internal_dense", 19.2),
        ("internal_moe", 33.8),
        ("qwen3_30b_a3b", 30.5),
        ("qwen3_8b_a1b", 8.1),
        ("trillion_moe", 1026.4),
    ],
)
def test_a_model_has_the_stated_size(name, billions):
    spec = read_model(str(FOLDER / f"{name}.toml"))
    assert round(elements(spec.parameters) / 1e9, 1) == billions


def test_mimo_has_the_stated_size_within_a_thousandth():
    spec = read_model(str(FOLDER / "mimo_12l.toml"))
    assert elements(spec.parameters) == pytest.approx(73.5e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "prefixes", "percent"),
    [
        ("internal_moe", (".attn.", ".mlp."), 88.1),
        ("qwen3_30b_a3b", (".self_attn.", ".mlp."), 97.9),
    ],
)
def test_muon_would_update_the_stated_share(name, prefixes, percent):
    spec = read_model(str(FOLDER / f"{name}.toml"))
    matrices = [
        p for p in spec.parameters if len(p.shape) > 1 and any(x in p.name for x in prefixes)
    ]
    share = 100 * elements(matrices) / elements(spec.parameters)
    # The embedding and the head are 2.04% of Qwen3, so at most 97.96% is left for Muon.
    assert share == pytest.approx(percent, abs=0.07)


def test_the_small_qwen3_activates_the_stated_share():
    spec = read_model(str(FOLDER / "qwen3_8b_a1b.toml"))
    experts = elements(p for p in spec.parameters if ".experts." in p.name)
    active = elements(spec.parameters) - experts + experts * 8 // 128  # top 8 of 128
    assert round(active / 1e9, 1) == 1.3


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "mimo_12l",
            {"model_type": "mimo_v2_flash", "num_hidden_layers": 12, "dtype": "bfloat16"},
        ),
        (
            "qwen3_30b_a3b",
            {
                "model_type": "qwen3_moe",
                "dtype": "bfloat16",
                "head_dim": 128,
                "hidden_size": 2048,
                "moe_intermediate_size": 768,
                "num_attention_heads": 32,
                "num_experts": 128,
                "num_hidden_layers": 48,
                "num_key_value_heads": 4,
                "vocab_size": 151936,
            },
        ),
    ],
)
def test_public_models_are_those_that_transformers_builds(name, config, tmp_path):
    transformers = pytest.importorskip("transformers")
    if config["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {config['model_type']}")
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = read_model(str(FOLDER / f"{name}.toml"))
    theirs = read_model(str(tmp_path))
    assert {(p.name, p.shape, p.dtype) for p in ours.parameters} == {
        (p.name.removeprefix("model."), p.shape, p.dtype) for p in theirs.parameters
    }
