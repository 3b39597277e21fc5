"""Unmodified Hugging Face models, sharded: the mathematics of plain PyTorch, in FP64."""

import warnings
from dataclasses import astuple
from functools import cache, partial
from itertools import product

import pytest
import torch
from integration.hugging_face.families import FAMILIES
from testing.ranks import run_ranks
from torch.distributed import PrefixStore

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard, is_matrix, presets
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon
from sshsdp_zerosm import connect

STEPS = 3
TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}
RECOMPUTED = {"kept": None, "recomputed": False, "recomputed reentrantly": True}
# The keys' bias has no gradient but rounding, which AdamW brings to the size of a gradient.
NOISE = {"vit": 1e-11, "gpt2": 1e-11}
# Torch's grouped product on the CPU takes FP32, BF16 and FP16.
DTYPES = {"qwen3-moe-grouped_mm": torch.float32}
FP32 = {"rtol": 1e-4, "atol": 1e-6}
# With 1e-8 AdamW turns the rounding of a gradient near zero into an update: in FP32 plain PyTorch
# is 3e-5 off itself when it adds the same gradients in the order of ranks.
EPS = {"qwen3-moe-grouped_mm": 1e-4}

NESTED = {
    world: [
        Degrees(zero3, zero2, zero1)
        for zero3, zero2, zero1 in product((1, 2, 4), repeat=3)
        if zero3 <= zero2 <= zero1 <= world
    ]
    for world in (1, 2, 4)
}


def fresh(name, recompute="kept"):
    torch.manual_seed(0)
    model = FAMILIES[name].build().to(DTYPES.get(name, torch.float64)).train()
    if RECOMPUTED[recompute] is not None:
        reentrant = {"use_reentrant": RECOMPUTED[recompute]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions differ in the name that they advise
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
    return model


def batch(name, step, microbatch, rank):
    seed = 100 * step + 10 * microbatch + rank
    content = FAMILIES[name].batch(torch.Generator().manual_seed(seed))
    dtype = DTYPES.get(name, torch.float64)
    return {key: v.to(dtype) if v.is_floating_point() else v for key, v in content.items()}


@cache
def unsharded(name, world):
    model = fresh(name)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    eps = EPS.get(name, 1e-8)
    optimizers = [
        torch.optim.AdamW(decayed, lr=1e-2, weight_decay=0.1, eps=eps),
        torch.optim.AdamW(others, lr=1e-2, weight_decay=0.0, eps=eps),
    ]
    for step in range(STEPS):
        for microbatch, rank in product(range(2), range(world)):
            (model(**batch(name, step, microbatch, rank)).loss / world).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {key: value.clone() for key, value in model.state_dict().items()}


def adamw(name):
    eps = EPS.get(name, 1e-8)
    return [
        Update("**", AdamW(lr=1e-2, weight_decay=0.1, eps=eps), where=is_matrix),
        Update("**", AdamW(lr=1e-2, weight_decay=0.0, eps=eps)),
    ]


def train(rank, name, degrees, form, recompute, **rules):
    label = f"{astuple(degrees)}{form}{recompute}{sorted(rules)}"
    with connect(rank.rank, rank.world, PrefixStore(label, rank.store), timeout=60) as transport:
        model = fully_shard(
            fresh(name, recompute),
            sharding=[Sharding("**", degrees)],
            transport=transport,
            form=form,
            poison=form == "private",
            **rules or {"updates": adamw(name)},
        )
        for step in range(STEPS):
            for microbatch in range(2):
                model(**batch(name, step, microbatch, rank.rank)).loss.backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        state = {key: value.clone() for key, value in model.full_state_dict().items()}
        model.close()
    return state


def check(name, world, cases):
    def main(rank):
        return [train(rank, name, *case) for case in cases]

    expected = unsharded(name, world)
    tolerance = FP32 if name in DTYPES else TOLERANCE | {"atol": NOISE.get(name, 1e-12)}
    for results in run_ranks(main, world, timeout=300):
        for case, state in zip(cases, results, strict=True):
            agree(state, expected, case, **tolerance)


def agree(state, expected, case, **tolerance):
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            state[key], value, **tolerance, msg=lambda text, k=key: f"{k} of {case}: {text}"
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_training_equals_plain_pytorch(name):
    check(name, 2, [(Degrees(2, 2, 2), "private", way) for way in RECOMPUTED])


@pytest.mark.parametrize("name", ["llama-tied", "qwen3-moe-eager", "t5"])
def test_with_nested_degrees_and_shared_weights_too(name):
    check(name, 1, [(Degrees(1, 1, 1), "shared", "recomputed reentrantly")])
    check(
        name, 4, [(Degrees(1, 2, 4), "private", "recomputed"), (Degrees(2, 2, 4), "shared", "kept")]
    )


@pytest.mark.full
@pytest.mark.parametrize("way", RECOMPUTED)  # a start of ranks each, which bounds its time
@pytest.mark.parametrize("world", NESTED)
@pytest.mark.parametrize("name", FAMILIES)
def test_training_equals_plain_pytorch_everywhere(name, world, way):
    check(name, world, list(product(NESTED[world], ("shared", "private"), [way])))


# With presets: Muon per head, per expert and per matrix, packed projections

SPLITS = {  # how torch's Muon gets its matrices: dimension that is cut, and the size of a piece
    "llama": {"q_proj": (0, 8), "k_proj": (0, 8), "v_proj": (0, 8), "o_proj": (1, 8)},
    "gpt2": {"c_attn": (1, 8), "attn.c_proj": (0, 8)},
    "qwen3-moe-eager": {
        **{f"{name}_proj.weight": (0, 8) for name in "qkv"},
        "o_proj.weight": (1, 8),
        "gate_up_proj": (-2, 8),
        "experts.down_proj": (-2, 24),
    },
    "t5": {**{f"Attention.{name}.": (0, 10) for name in "qkv"}, "Attention.o.": (1, 10)},
    "vit": {"q_proj": (0, 8), "k_proj": (0, 8), "v_proj": (0, 8), "o_proj": (1, 8)},
}
WHOLE = (
    *(f"mlp.{name}.weight" for name in ("c_fc", "c_proj", "fc1", "fc2")),
    *(f"{name}.weight" for name in ("gate_proj", "up_proj", "down_proj", "wi", "wo")),
)


def matrices(name, key, value):
    """Views of what is one matrix each; none for what Muon does not update."""
    for part, (dim, size) in SPLITS[name].items():
        if part in key and value.dim() > 1 and "relative" not in key:
            pieces = value.split(size, dim)
            return [m for piece in pieces for m in (piece if piece.dim() > 2 else [piece])]
    return [value] if key.endswith(WHOLE) else []


@cache
def unsharded_with_muon(name, world):
    model = fresh(name)
    named = dict(model.named_parameters())
    views = {key: matrices(name, key, p.data) for key, p in named.items()}
    parts = {key: [torch.nn.Parameter(m.clone()) for m in own] for key, own in views.items() if own}
    muon = torch.optim.Muon(
        [part for own in parts.values() for part in own],
        lr=0.02,
        weight_decay=0.1,
        adjust_lr_fn="match_rms_adamw",
    )
    others = [p for key, p in named.items() if key not in parts]
    decayed = torch.optim.AdamW([p for p in others if p.dim() > 1], lr=1e-2, weight_decay=0.1)
    vectors = torch.optim.AdamW([p for p in others if p.dim() < 2], lr=1e-2, weight_decay=0.0)
    for step in range(STEPS):
        for microbatch, rank in product(range(2), range(world)):
            (model(**batch(name, step, microbatch, rank)).loss / world).backward()
        for key, own in parts.items():
            for part, grad in zip(own, matrices(name, key, named[key].grad), strict=True):
                part.grad = grad.clone()
        with pytest.MonkeyPatch.context() as patch:
            # torch's iteration always is in BF16: here its one cast gives a copy in FP64.
            patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
            muon.step()
        decayed.step()
        vectors.step()
        model.zero_grad()
        for key, own in parts.items():
            for view, part in zip(views[key], own, strict=True):
                view.copy_(part.data)
    return {key: value.clone() for key, value in model.state_dict().items()}


def with_preset(rank, name, degrees, form):
    preset = presets.for_model(
        fresh(name),
        muon=Muon(
            lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw", ns_dtype=torch.float64
        ),
        adamw=AdamW(lr=1e-2, weight_decay=0.1),
    )
    return train(rank, name, degrees, form, "kept", **preset.arguments())


@pytest.mark.parametrize("name", SPLITS)
def test_a_preset_is_muon_per_head_per_expert_and_per_matrix(name):
    # Newton-Schulz amplifies the rounding of small singular values.
    tolerance = {"rtol": 1e-8, "atol": 1e-9}
    expected = unsharded_with_muon(name, 2)
    case = partial(with_preset, name=name, degrees=Degrees(2, 2, 2), form="private")
    for state in run_ranks(case, 2, timeout=120):
        agree(state, expected, name, **tolerance)


@pytest.mark.full
@pytest.mark.parametrize("world", NESTED)
@pytest.mark.parametrize("name", SPLITS)
def test_a_preset_is_that_everywhere(name, world):
    def main(rank):
        cases = product(NESTED[world], ("shared", "private"))
        return [with_preset(rank, name, *case) for case in cases]

    for results in run_ranks(main, world, timeout=300):
        for state in results:
            agree(state, unsharded_with_muon(name, world), name, rtol=1e-8, atol=1e-9)
