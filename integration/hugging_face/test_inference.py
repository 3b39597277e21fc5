"""Evaluation, generation and state of sharded Hugging Face models equal those of plain ones."""

import contextlib

import pytest
import torch
import transformers
from integration.hugging_face.families import FAMILIES
from testing.ranks import run_ranks
from torch.distributed import PrefixStore

from sshsdp_fsdp_runtime import fully_shard
from sshsdp_zerosm import connect

FORMS = ("shared", "private")
GENERATING = [name for name, family in FAMILIES.items() if family.generates]


def fresh(name):
    torch.manual_seed(0)
    model = FAMILIES[name].build()
    if name != "qwen3-moe-grouped_mm":  # FP32 at most
        model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that the likeliest token is likely
    return model.eval()


def batch(name):
    return FAMILIES[name].batch(torch.Generator().manual_seed(0))


def generate(model, name):
    prompt = batch(name)["input_ids"]
    return model.generate(prompt, max_new_tokens=6, min_new_tokens=6, do_sample=False)


def each_form(rank, model_of, action):
    """What `action` gives on a sharded model, in either form."""
    results = []
    for form in FORMS:
        store = PrefixStore(form, rank.store)
        with connect(rank.rank, rank.world, store, timeout=60) as transport:
            model = fully_shard(
                model_of(), transport=transport, form=form, poison=form == "private"
            )
            results.append(action(model))
            model.close()
    return results


@pytest.mark.parametrize("name", GENERATING)
def test_greedy_generation_is_that_of_the_plain_model(name):
    expected = generate(fresh(name), name)
    assert len(set(expected.flatten().tolist())) > 2

    def twice(model):
        first = generate(model, name)
        model.train()
        model(**batch(name)).loss.backward()
        model.optimizer.zero_grad()
        model.eval()
        return first, generate(model, name)

    for results in run_ranks(lambda rank: each_form(rank, lambda: fresh(name), twice), 2):
        for first, second in results:
            assert first.equal(expected)
            assert second.equal(expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
@pytest.mark.parametrize("name", ["llama-tied", "vit", "t5"])
def test_evaluation_is_that_of_the_plain_model(name, context):
    with torch.no_grad():
        plain = fresh(name)(**batch(name))

    def evaluate(model):
        with context():
            output = model(**batch(name))
        return output.loss.item(), output.logits.detach().clone().numpy()

    for results in run_ranks(lambda rank: each_form(rank, lambda: fresh(name), evaluate), 2):
        for loss, logits in results:
            assert loss == pytest.approx(plain.loss.item(), rel=1e-12)
            torch.testing.assert_close(torch.from_numpy(logits), plain.logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_full_state_goes_back_into_a_plain_model(name):
    def full(model):
        return model.full_state_dict()

    source = fresh(name)
    for results in run_ranks(lambda rank: each_form(rank, lambda: fresh(name), full), 2):
        for state in results:
            plain = FAMILIES[name].build().to(next(source.parameters()).dtype)
            plain.load_state_dict(state)
            for key, value in source.state_dict().items():
                assert plain.state_dict()[key].equal(value)


def test_save_pretrained_takes_the_full_state_and_names_the_class(tmp_path):
    model = fully_shard(fresh("llama-tied"))
    state = model.full_state_dict()
    model.save_pretrained(tmp_path, state_dict=dict(state))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(again) is transformers.LlamaForCausalLM
    for key, value in again.state_dict().items():
        assert state[key].equal(value)


def test_resizing_embeddings_of_a_sharded_model_is_refused_at_once_and_changes_nothing():
    model = fully_shard(fresh("llama"))
    expected = model(**batch("llama")).loss
    with pytest.raises(RuntimeError, match=r"'model\.embed_tokens\.weight'.*before fully_shard"):
        model.resize_token_embeddings(60, mean_resizing=False)
    assert model(**batch("llama")).loss == expected
