"""What find_nonfinite says of weights, buffers, gradients and optimizer state."""

import pytest
import torch
from torch import nn

from sshsdp_fsdp_runtime import Sharding
from sshsdp_shardchain import Degrees

from .scenes import ids, on_ranks

NAN, INF = float("nan"), float("inf")
LAYOUTS = [
    (1, (1, 1, 1)),
    (3, (3, 3, 3)),
    (4, (1, 1, 2)),  # two replicas
]


def everywhere(found):
    """The findings of one rank, which must be those of all."""
    assert all(other == found[0] for other in found)
    return found[0]


def one_pass(model, rank=0):
    model(ids(rank)).square().mean().backward()


def plant(rank, model):
    """NaN and inf in a weight, a buffer and the state; what is said of them."""
    assert model.find_nonfinite() == ()
    one_pass(model)
    model.optimizer.step()
    model.optimizer.zero_grad()
    assert model.find_nonfinite() == ()
    with model.unsharded("layers.1.up.weight", "gain") as full:
        full["layers.1.up.weight"][2, 3] = INF
        full["layers.1.up.weight"][4, 1] = NAN
        full["gain"][1] = -INF
    model.shift[7] = NAN
    for field in model.optimizer.fields():
        if (field.name, field.field) == ("embedding.weight", "exp_avg"):
            at = 3 * 5 + 2 - field.fragment.start
            if 0 <= at < field.tensor.numel():
                field.tensor[at] = NAN
    return [(n.kind, n.name, n.field, n.nan, n.inf, n.first) for n in model.find_nonfinite()]


@pytest.mark.parametrize(("world", "degrees"), LAYOUTS)
def test_each_element_is_counted_once_and_the_first_named_by_its_index(world, degrees):
    sharding = [Sharding("**", Degrees(*degrees))]
    found = on_ranks(world, plant, sharding=sharding)
    assert sorted(everywhere(found)) == [
        ("buffer", "shift", "", 1, 0, (7,)),
        ("state", "embedding.weight", "exp_avg", 1, 0, (3, 2)),
        ("weight", "gain", "", 0, 1, (1,)),
        ("weight", "layers.1.up.weight", "", 1, 1, (2, 3)),
    ]


def spoilt_padding(rank, model):
    """Buffers full of NaN but for what members hold."""
    state = model._sharded
    one_pass(model)
    model.finalize_gradients()
    padded = 0
    for buffers in state.buffers.atoms.values():
        for flat in {
            id(t): t for t in (buffers.truth, _gradients(buffers)) if t is not None
        }.values():
            held = torch.zeros(flat.numel(), dtype=torch.bool)
            for handle in state.handles:
                if handle.buffers is buffers:
                    piece = state.gradients.fragment(handle)
                    held[piece.local_offset : piece.local_offset + piece.numel] = True
            padded += int((~held).sum())
            flat[~held] = NAN
    return padded, model.find_nonfinite(), float(model.optimizer.grad_norm())


def _gradients(buffers):
    return None if buffers.main_grad is None else buffers.main_grad.tensor


def test_padding_is_never_counted():
    padded, found, norms = zip(*on_ranks(3, spoilt_padding), strict=True)
    assert sum(padded) > 0
    assert everywhere(found) == ()
    assert all(norm < INF for norm in norms)


def skipped(rank, model):
    before = model.full_state_dict()
    loss = model(ids(rank.rank)).square().mean()
    if rank.rank == rank.world - 1:
        loss = loss + INF * model.layers[0].scale  # on one rank only
    loss.backward()
    model.optimizer.step()
    assert model.optimizer.last_step_skipped
    found = model.find_nonfinite()
    model.optimizer.zero_grad()
    assert model.find_nonfinite() == ()
    after = model.full_state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    return [str(one) for one in found]


@pytest.mark.parametrize("world", [1, 3])
def test_after_a_skipped_step_the_gradient_that_caused_it_is_named(world):
    [text] = everywhere(on_ranks(world, skipped))
    assert text.startswith("gradient layers.0.scale: 1 inf of 1, first at [], on rank")


def test_ranks_that_hold_the_values_are_named():
    def scene(rank, model):
        with model.unsharded("weight") as full:
            full["weight"][15:17] = NAN  # a rank has 16 rows
        [found] = model.find_nonfinite()
        return found.ranks, str(found)

    found = on_ranks(4, scene, model=nn.Linear(16, 64, bias=False))
    text = "weight weight: 32 NaN of 1024, first at [15, 0], on ranks 0, 1"
    assert everywhere(found) == ((0, 1), text)


def test_replicas_that_differ_are_told_apart():
    def scene(rank, model):
        if rank.rank == 1:
            model._sharded.handles[0].buffers.truth[:3] = NAN  # this copy alone
        [found] = model.find_nonfinite()
        return found.ranks, found.nan, found.first

    sharding = [Sharding("**", Degrees(1, 1, 1))]
    found = on_ranks(2, scene, model=nn.Linear(4, 4, bias=False), sharding=sharding, form="private")
    assert everywhere(found) == ((1,), 3, (0, 0))


def test_more_findings_than_fit_into_one_exchange_arrive_whole():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(5)))

    def scene(rank, model):
        model.transport.max_exchange_bytes = 3 * 32  # the length, and two rows
        with model.unsharded() as full:
            for value in full.values():
                value.fill_(NAN)
        return [found.name for found in model.find_nonfinite()]

    names = everywhere(on_ranks(2, scene, model=model))
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_a_read_of_released_weights_is_seen_as_nan_and_named():
    class Keeps(nn.Module):
        """Keeps a bare view of its weight and uses it when it is called without one."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(5))
            self.kept = None

        def forward(self, x):
            if self.kept is None:
                self.kept = self.weight.data
            return x @ self.weight

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Keeps() for _ in range(3))
            self.gain = nn.Parameter(torch.ones(5))

        def forward(self, x, released=False):
            for layer in self.layers:
                x = layer(x)
            if released:
                x = x * self.layers[0].kept[0, 0]  # another layer's turn in the buffer is over
            return x * self.gain

    def scene(rank, model):
        x = torch.ones(2, 5)
        model(x).sum().backward()
        assert model.find_nonfinite() == ()
        model.optimizer.zero_grad()
        model(x, released=True).sum().backward()
        model.optimizer.step()
        assert model.optimizer.last_step_skipped
        return [found.name for found in model.find_nonfinite()]

    found = on_ranks(2, scene, model=Model(), form="private", poison=True)
    assert "gain" in everywhere(found)
