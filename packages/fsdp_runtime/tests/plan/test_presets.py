"""Presets: what is known of a family, without the library that it comes from."""

from types import SimpleNamespace

import pytest
from torch import nn

from sshsdp_fsdp_runtime import presets
from sshsdp_updates import AdamW, Muon


def config(kind="llama", **changes):
    settings = {"hidden_size": 24, "num_attention_heads": 3}
    return SimpleNamespace(model_type=kind, **settings | changes)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = nn.ModuleDict({f"{n}_proj": nn.Linear(24, 24) for n in "qkvo"})


class Model(nn.Module):
    """Named as Llama is, without feed-forward layers and embeddings."""

    def __init__(self):
        super().__init__()
        self.config = config()
        self.layers = nn.ModuleList([Block()])


def test_a_description_shows_every_rule():
    preset = presets.for_model(config(head_dim=16), adamw=AdamW(weight_decay=0.5))
    lines = [line.split() for line in preset.describe().splitlines()]
    assert lines[:4] == [
        ["preset", "for", "llama"],
        ["group", "**.layers.*"],
        ["pack", "**.self_attn:", "q_proj", "+", "k_proj", "+", "v_proj"],
        ["pack", "**.mlp:", "gate_proj", "+", "up_proj"],
    ]
    assert ["update", "**.self_attn.q_proj.weight", "Muon,", "heads(16)"] in lines
    assert ["update", "**.self_attn.o_proj.weight", "Muon,", "columns(16)"] in lines
    assert ["update", "**.mlp.down_proj.weight", "Muon"] in lines
    assert lines[-2] == ["update", "**", "AdamW", "where", "is_matrix"]
    assert lines[-1] == ["update", "**", "AdamW"]
    assert [update.rule.weight_decay for update in preset.updates[-2:]] == [0.5, 0.0]


def test_members_of_a_pack_share_one_rule_object():
    preset = presets.for_model(config(), muon=Muon(lr=0.5))
    assert len({id(u.rule) for u in preset.updates if isinstance(u.rule, Muon)}) == 1
    assert preset.updates[0].rule.lr == 0.5


def test_the_size_of_a_head_is_the_width_by_the_heads_where_it_is_not_given():
    assert presets.for_model(config()).updates[0].unit.name == "heads(8)"


def test_rules_that_would_claim_nothing_in_a_model_are_left_out():
    model = Model()
    patterns = [update.pattern for update in presets.for_model(model).updates]
    assert patterns == [f"**.self_attn.{n}_proj.weight" for n in "qkvo"] + ["**"]
    assert [pack.pattern for pack in presets.for_model(model).packs] == ["**.self_attn"]
    model.layers[0].self_attn["o_proj"].requires_grad_(False)
    assert len(presets.for_model(model).updates) == 4


@pytest.mark.parametrize(("steps", "dense"), [((1, []), False), ((2, []), True), ((1, [0]), True)])
def test_a_mixture_has_rules_for_dense_layers_where_it_has_some(steps, dense):
    sparse = {"num_hidden_layers": 2, "moe_intermediate_size": 6}
    sparse |= {"decoder_sparse_step": steps[0], "mlp_only_layers": steps[1]}
    patterns = [u.pattern for u in presets.for_model(config("qwen3_moe", **sparse)).updates]
    assert ("**.mlp.up_proj.weight" in patterns) is dense


def test_an_unknown_family_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"gpt2, llama, .*got 'mamba'.*by hand"):
        presets.for_model(config("mamba"))
    with pytest.raises(TypeError, match="got Linear"):
        presets.for_model(nn.Linear(2, 2))


def test_presets_are_edited_as_lists():
    preset = presets.for_model(Model())
    preset.packs.clear()
    preset.updates.pop(0)
    assert preset.arguments() == {
        "groups": ["**.layers.*"],
        "packs": [],
        "updates": preset.updates,
    }
