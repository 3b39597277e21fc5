"""Methods other than forward find their weights and deliver gradients; nothing is registered."""

import copy
from itertools import chain

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Pack, Update
from sshsdp_updates import SGD

from .scenes import on_ranks_in_turn

WIDTH, WORDS, STEPS = 6, 7, 3
FORMS = [
    {"form": "shared"},
    {"form": "private", "poison": True, "slots": 1},
    {"form": "private", "poison": True, "slots": 2, "packs": [Pack("layers.*", ["query", "key"])]},
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.mix(x, self.query(self.norm(x)))

    def mix(self, x, y):
        return x + torch.tanh(y) * self.key(self.norm(x))


class Model(nn.Module):
    """Its head is frozen: then the first gradients may come from a checkpointed block."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS).requires_grad_(False)

    def encode(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer.mix(x, layer.query(x))  # no module's forward
        return x

    def loss(self, ids, reentrant):
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return self.head(x).square().mean()

    def similarity(self, ids):
        return torch.cosine_similarity(self.encode(ids), self.encode(ids.flip(0)), -1).mean()

    @torch.no_grad()
    def generate(self, ids, count):
        for _ in range(count):
            scores = self.head(self.encode(ids))[:, -1]
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
        return ids


def fresh():
    torch.manual_seed(0)
    return Model().double()


def words(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(0, WORDS, (2, 4), generator=generator)


def train(model, optimizer, ranks):
    for step in range(STEPS):
        for rank in ranks:
            ids = words(step, rank)
            for loss in (
                lambda ids: model.loss(ids, reentrant=False),
                lambda ids: model.loss(ids, reentrant=True),
                model.similarity,
                lambda ids: model.encode(ids).square().mean(),
            ):
                (loss(ids) / len(ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.generate(words(9, 0), 3)


def in_each_form(scene, **options):
    """What each of two ranks returned, form by form."""
    cases = [{"model": fresh()} | form | options for form in FORMS]
    return chain.from_iterable(on_ranks_in_turn(2, scene, cases))


def test_training_and_generation_by_methods_alone():
    def scene(rank, model):
        generated = train(model, model.optimizer, [rank.rank])
        return generated, model.full_state_dict()

    plain = fresh()
    trainable = [p for p in plain.parameters() if p.requires_grad]
    expected = train(plain, torch.optim.SGD(trainable, lr=0.1), [0, 1])
    for generated, state in in_each_form(scene, updates=[Update("**", SGD(lr=0.1))]):
        assert torch.equal(generated, expected)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12)


def test_a_step_is_seen_by_the_next_call_of_a_method():
    def scene(_rank, model):
        before = model.generate(words(0, 0), 1), model.encode(words(0, 0)).detach()
        with model.unsharded("embedding.weight") as full:
            full["embedding.weight"].mul_(-1)
        return *before, model.encode(words(0, 0)).detach()

    plain = fresh()
    first = plain.encode(words(0, 0)).detach()
    changed = copy.deepcopy(plain)
    changed.embedding.weight.data.mul_(-1)
    second = changed.encode(words(0, 0)).detach()
    for generated, before, after in in_each_form(scene):
        assert torch.equal(generated, plain.generate(words(0, 0), 1))
        torch.testing.assert_close(before, first)
        torch.testing.assert_close(after, second)


def test_ranks_may_recompute_in_different_ways_since_a_backward_is_one_pass():
    def scene(rank, model):
        for step in range(STEPS):
            model.loss(words(step, rank.rank), reentrant=rank.rank == step % 2).backward()
        passes = model._sharded.passes.count
        model.optimizer.step()
        return passes, model.full_state_dict()

    plain = fresh()
    for step in range(STEPS):
        for rank in range(2):
            (plain.loss(words(step, rank), reentrant=False) / 2).backward()
    torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1).step()
    for passes, state in in_each_form(scene, updates=[Update("**", SGD(lr=0.1))]):
        assert passes == STEPS
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12)
