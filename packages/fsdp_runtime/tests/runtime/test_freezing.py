"""Weights that are frozen and unfrozen between rounds: as in plain PyTorch, and in no one's way."""

import pytest
import torch
from testing.models import TiedModel
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding, Update
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW

from . import packed_model
from .scenes import ids, on_ranks

STEPS = 6
FORMS = [{"form": "shared"}, {"form": "private", "poison": True, "slots": 1}]
each_form = pytest.mark.parametrize("options", FORMS, ids=["shared", "private"])


def frozen_in(step, name):
    """Which parameters stand still in a step: of one layer, of all but one, a single one."""
    rules = [
        name.startswith("layers.0"),
        not name.startswith("layers.2"),
        name.endswith("up.weight"),
        name in ("gain", "layers.1.norm.bias"),
    ]
    return rules[step % 5] if step % 5 < len(rules) else False


def set_frozen(model, step):
    for name, parameter in model.named_parameters():
        if not name.endswith(".frozen"):
            parameter.requires_grad_(not frozen_in(step, name))


def loss_of(model, seed):
    return functional.cross_entropy(model(ids(seed)).flatten(0, 1), ids(seed + 1).flatten())


def fresh():
    torch.manual_seed(0)
    return TiedModel().double()


@each_form
@pytest.mark.parametrize(("world", "degrees"), [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (1, 3, 3))])
def test_a_frozen_weight_stands_still_and_trains_on_when_it_is_unfrozen(world, degrees, options):
    def scene(rank, model):
        shown = []
        for step in range(STEPS):
            set_frozen(model, step)
            loss_of(model, 10 * step + rank.rank).backward()
            shown.append({n for n, p in model.named_parameters() if p.grad is None})
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            model.optimizer.step()
            model.optimizer.zero_grad()
        return shown, model.full_state_dict()

    plain = fresh()
    trainable = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2, weight_decay=0.1)
    for step in range(STEPS):
        set_frozen(plain, step)
        for rank in range(world):
            (loss_of(plain, 10 * step + rank) / world).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    options = options | {
        "sharding": [Sharding("**", Degrees(*degrees))],
        "updates": [Update("**", AdamW(lr=1e-2, weight_decay=0.1))],
    }
    for shown, state in on_ranks(world, scene, model=fresh(), **options):
        for step, without in enumerate(shown):
            names = {name for name in state if frozen_in(step, name)}
            assert names & dict(plain.named_parameters()).keys() <= without
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12)


@each_form
def test_a_group_is_reduced_as_early_as_if_what_is_frozen_were_not_there(options):
    model = fresh()
    for layer in model.layers:
        del layer.unused, layer.empty  # a group waits for what is never used

    def scene(rank, ours):
        ours.layers[2].up.weight.requires_grad_(False)
        group = next(g for g in ours._sharded.passes.groups if g.plan.label == "layers.2")
        seen = []
        ours.layers[1].register_full_backward_hook(
            lambda _module, _dx, _dy: seen.append(group.issued)
        )
        loss_of(ours, rank.rank).backward()
        return seen

    options = options | {"slots": 3}  # nobody needs the group's memory
    assert on_ranks(2, scene, model=model, **options) == [[True], [True]]


@each_form
def test_a_member_of_a_pack_may_be_frozen_alone(options):
    def train(model, optimizer, ranks):
        for step in range(3):
            for index, layer in enumerate(model.layers):
                layer.attention.key.requires_grad_(step != index)
                layer.up.weight.requires_grad_(step != 2)
            for rank in ranks:
                generator = torch.Generator().manual_seed(10 * step + rank)
                tokens = torch.randint(0, packed_model.VOCABULARY, (2, 5), generator=generator)
                (model(tokens).square().mean() / (2 if len(ranks) == 2 else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def scene(rank, model):
        train(model, model.optimizer, [rank.rank])
        return model.full_state_dict()

    plain = packed_model.fresh()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), [0, 1])
    options = options | {
        "packs": packed_model.PACKS,
        "updates": [Update("**", SGD(lr=0.1, momentum=0.9))],
    }
    for state in on_ranks(2, scene, model=packed_model.fresh(), **options):
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12)


@each_form
def test_what_was_frozen_before_can_not_be_unfrozen(options):
    def scene(_rank, model):
        model.layers[1].frozen.requires_grad_(True)
        with pytest.raises(
            RuntimeError, match=r"frozen, got requires_grad=True.*fresh=.*freeze it after"
        ):
            model(ids())
        model.layers[1].frozen.requires_grad_(False)
        model(ids())

    on_ranks(1, scene, model=fresh(), **options)
