"""Presets claim every parameter of real models as intended."""

import pytest
import transformers
from integration.hugging_face.families import DECODER, FAMILIES, llama, t5

from sshsdp_fsdp_runtime import ModelSpec, build_plan, presets
from sshsdp_updates import Muon

# What Muon works on, by the end of a parameter's name; everything else is AdamW's.
DECODER_UNITS = {
    "self_attn.q_proj.weight": "heads(8)",
    "self_attn.k_proj.weight": "heads(8)",
    "self_attn.v_proj.weight": "heads(8)",
    "self_attn.o_proj.weight": "columns(8)",
    "mlp.gate_proj.weight": "whole()",
    "mlp.up_proj.weight": "whole()",
    "mlp.down_proj.weight": "whole()",
}
ATTENTION_UNITS = {name: unit for name, unit in DECODER_UNITS.items() if "attn" in name}
EXPERT_UNITS = {"mlp.experts.gate_up_proj": "heads(8)", "mlp.experts.down_proj": "experts()"}
T5_UNITS = {
    **{f"Attention.{name}.weight": "heads(10)" for name in "qkv"},
    "Attention.o.weight": "columns(10)",
    "DenseReluDense.wi.weight": "whole()",
    "DenseReluDense.wo.weight": "whole()",
}
EXPECTED = {
    "llama": DECODER_UNITS,
    "llama-tied": DECODER_UNITS,
    "qwen3": {name: unit.replace("8", "10") for name, unit in DECODER_UNITS.items()},
    "qwen3-moe-eager": ATTENTION_UNITS | EXPERT_UNITS,
    "gpt2": {
        "attn.c_attn.weight": "columns(8)",
        "attn.c_proj.weight": "heads(8)",
        "mlp.c_fc.weight": "whole()",
        "mlp.c_proj.weight": "whole()",
    },
    "vit": {
        **{f"attention.{name}_proj.weight": "heads(8)" for name in "qkv"},
        "attention.o_proj.weight": "columns(8)",
        "mlp.fc1.weight": "whole()",
        "mlp.fc2.weight": "whole()",
    },
    "t5": T5_UNITS,
}
PACKS = {
    "llama": ["q_proj+k_proj+v_proj", "gate_proj+up_proj"],
    "llama-tied": ["q_proj+k_proj+v_proj", "gate_proj+up_proj"],
    "qwen3": ["q_proj+k_proj+v_proj", "gate_proj+up_proj"],
    "qwen3-moe-eager": ["q_proj+k_proj+v_proj"],
    "gpt2": [],
    "vit": ["q_proj+k_proj+v_proj"],
    "t5": ["q+k+v", "k+v"],
}


def muon_units(plan):
    """Names of parameters that Muon updates, with their units."""
    return {
        parameter.name: unit.name
        for atom in plan.atoms
        if isinstance(atom.rule, Muon)
        for parameter, unit in zip(atom.parameters, atom.units, strict=True)
    }


def check(model, expected):
    spec = ModelSpec.of(model)
    plan = build_plan(spec, 2, **presets.for_model(model).arguments())
    units = muon_units(plan)
    for name, unit in units.items():
        assert [u for end, u in expected.items() if name.endswith(end)] == [unit], name
    for end in expected:
        assert any(name.endswith(end) for name in units), end
    matrices = {p.name for p in spec.parameters if len(p.shape) > 1}
    decayed = {
        parameter.name: atom.rule.weight_decay > 0
        for atom in plan.atoms
        if not isinstance(atom.rule, Muon)
        for parameter in atom.parameters
    }
    assert decayed == {p.name: p.name in matrices for p in spec.parameters if p.name not in units}
    return plan


@pytest.mark.parametrize("name", EXPECTED)
def test_every_parameter_is_claimed_as_intended(name):
    plan = check(FAMILIES[name].build(), EXPECTED[name])
    assert len(plan.groups) == 1 + (6 if name == "t5" else 3)  # blocks, and the root


@pytest.mark.parametrize("name", PACKS)
def test_projections_of_the_same_tensor_are_packed(name):
    preset = presets.for_model(FAMILIES[name].build())
    assert ["+".join(pack.members) for pack in preset.packs] == PACKS[name]


def test_a_gated_t5_packs_its_two_inputs():
    model = t5(feed_forward_proj="gated-gelu")
    units = {k: u for k, u in T5_UNITS.items() if "wi" not in k}
    check(model, units | {"wi_0.weight": "whole()", "wi_1.weight": "whole()"})
    assert [p.members for p in presets.for_model(model).packs][-1] == ("wi_0", "wi_1")


def test_a_mixture_with_dense_layers_has_rules_for_both():
    config = transformers.Qwen3MoeConfig(
        **DECODER, head_dim=8, moe_intermediate_size=8, num_experts=3, mlp_only_layers=[0]
    )
    check(transformers.Qwen3MoeForCausalLM(config), DECODER_UNITS | EXPERT_UNITS)


def test_the_inner_model_and_the_configuration_are_enough():
    check(llama().model, DECODER_UNITS)
    whole = llama()
    plan = build_plan(ModelSpec.of(whole), 2, **presets.for_model(whole.config).arguments())
    assert muon_units(plan) == muon_units(check(whole, DECODER_UNITS))
