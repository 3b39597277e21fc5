"""Sharded training is the mathematics of unsharded PyTorch."""

import copy

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import Rank, run_ranks
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard, is_matrix
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW
from sshsdp_zerosm import connect

STEPS = 4
TOLERANCE = 1e-10  # relative, FP64


def batch(step: int, microbatch: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * microbatch + rank)
    return torch.randint(0, 13, (2, 6), generator=generator)


def loss_of(model: torch.nn.Module, ids: torch.Tensor, microbatches: int) -> torch.Tensor:
    scores = model(ids[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()) / microbatches


def unsharded(model, world, microbatches, clip):
    """Plain PyTorch on every rank's data, averaged over ranks."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    optimizers = [
        torch.optim.AdamW(decayed, lr=3e-2, weight_decay=0.1),
        torch.optim.SGD(others, lr=5e-2, momentum=0.9),
    ]
    norms = []
    for step in range(STEPS):
        for microbatch in range(microbatches):
            for rank in range(world):
                (loss_of(model, batch(step, microbatch, rank), microbatches) / world).backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict(), norms


def train(rank: Rank, model, degrees, form, microbatches, clip, torch_clip):
    transport = connect(rank.rank, rank.world, rank.store, timeout=30)
    sharded = fully_shard(
        copy.deepcopy(model),
        sharding=[Sharding("**", degrees)],
        updates=[
            Update("**", AdamW(lr=3e-2, weight_decay=0.1), where=is_matrix),
            Update("**", SGD(lr=5e-2, momentum=0.9)),
        ],
        transport=transport,
        form=form,
        poison=form == "private",
    )
    optimizer = sharded.optimizer
    norms = []
    for step in range(STEPS):
        for microbatch in range(microbatches):
            loss_of(sharded, batch(step, microbatch, rank.rank), microbatches).backward()
        if clip:
            norm = (
                torch.nn.utils.clip_grad_norm_(sharded.parameters(), clip)
                if torch_clip
                else optimizer.clip_grad_norm_(clip)
            )
            norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    state = {name: value.clone() for name, value in sharded.full_state_dict().items()}
    sharded.close()
    transport.close()
    return state, norms


def assert_close(state, expected):
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            state[name],
            value,
            rtol=TOLERANCE,
            atol=1e-12,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("form", ["shared", "private"])
@pytest.mark.parametrize("everything", [False, True], ids=["degrees111", "degreesPPP"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_weights_equal_those_of_plain_pytorch(world, everything, form, microbatches):
    torch.manual_seed(0)
    model = TiedModel().double()
    degree = world if everything else 1
    degrees = Degrees(degree, degree, degree)
    clip = 0.05 if microbatches == 3 else None
    expected, norms = unsharded(copy.deepcopy(model), world, microbatches, clip)
    results = run_ranks(
        train, world, model, degrees, form, microbatches, clip, form == "private", timeout=90
    )
    for state, sharded_norms in results:
        assert_close(state, expected)
        assert sharded_norms == pytest.approx(norms, rel=1e-9)
