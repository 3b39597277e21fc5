"""Hugging Face models that are constructed without memory have the values of their seed."""

import pytest
import torch
import transformers
from integration.hugging_face.families import DECODER, FAMILIES
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime import deferred_init, fully_shard
from sshsdp_zerosm import connect


def values(model):
    return {**model.full_state_dict(), **{n: b.clone() for n, b in model.named_buffers()}}


def expected(build):
    torch.manual_seed(3)
    model = build()
    return {**model.state_dict(), **dict(model.named_buffers())}, torch.get_rng_state()


def unequal(one, other):
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not value.equal(other[name])]


@pytest.mark.parametrize("name", FAMILIES)
def test_values_buffers_and_the_generator_are_those_of_plain_construction(name):
    build = FAMILIES[name].build
    wanted, state = expected(build)
    torch.manual_seed(3)
    with deferred_init():
        model = build()
    model = fully_shard(model)
    assert unequal(wanted, values(model)) == []
    assert torch.get_rng_state().equal(state)
    assert torch.isfinite(model(**batch(name)).loss)


def batch(name):
    content = FAMILIES[name].batch(torch.Generator().manual_seed(0))
    return {key: v.float() if v.is_floating_point() else v for key, v in content.items()}


def from_config():
    config = transformers.AutoConfig.for_model("llama", **DECODER, tie_word_embeddings=True)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def test_ranks_that_build_from_a_configuration_hold_parts_of_the_same_model():
    def main(rank):
        torch.manual_seed(3)
        with deferred_init():
            model = from_config()
        with connect(rank.rank, rank.world, rank.store, timeout=30) as transport:
            model = fully_shard(model, transport=transport, sync="assert")
            tied = model.lm_head.weight is model.model.embed_tokens.weight
            result = values(model)
            model.close()
        return result, tied

    wanted, _ = expected(from_config)
    for result, tied in run_ranks(main, 2):
        assert tied
        stored = {name: value.to(wanted[name].dtype) for name, value in result.items()}
        assert unequal(wanted, stored) == []


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "vit", "t5"])
def test_a_model_on_meta_is_filled_by_its_own_initialization(name):
    torch.manual_seed(0)
    with torch.device("meta"):
        model = FAMILIES[name].build()
    model = fully_shard(model)
    assert "not those of a construction under the same seed" in model.plan.describe()
    built = FAMILIES[name].build()
    ours = values(model)
    for key, buffer in built.named_buffers():
        assert ours[key].equal(buffer), key
    for key, parameter in built.named_parameters():
        if parameter.dim() > 1 and parameter.numel() > 200:
            deviation = pytest.approx(parameter.std().item(), rel=0.3, abs=1e-6)
            assert ours[key].std().item() == deviation, key
    assert torch.isfinite(model(**batch(name)).loss)
