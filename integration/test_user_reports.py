"""Reports on other systems, replayed here; ``docs/bugs_of_others.md`` says whose they are."""

import copy

import pytest
import torch
from packages.fsdp_runtime.tests.runtime.scenes import ids, on_ranks
from testing.models import TiedModel
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Cast, Sharding, Update
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW

POISONED = {"form": "private", "poison": True}
each_form = pytest.mark.parametrize(
    "options", [{"form": "shared"}, POISONED], ids=["shared", "private"]
)


def values(model):
    return {name: value.clone() for name, value in model.full_state_dict().items()}


def unequal(one, other):
    return [name for name in one if not torch.equal(one[name], other[name])]


def pieces(model):
    """This rank's pieces of gradients, by name: where they begin, and their values."""
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: (grad.fragment.start, grad.local.clone()) for name, grad in grads.items()}


def agree(local, expected, **tolerance):
    for name, (start, piece) in local.items():
        whole = expected[name].flatten().to(piece.dtype)
        torch.testing.assert_close(piece, whole[start : start + piece.numel()], **tolerance)


@pytest.mark.parametrize("rule", [AdamW(weight_decay=0.0), SGD(momentum=0.9)], ids=["adamw", "sgd"])
def test_a_zero_gradient_at_the_first_step_leaves_weights_as_they_are(rule):
    def scene(_rank, model):
        before = values(model)
        (0 * model(ids())).sum().backward()
        norm = model.optimizer.clip_grad_norm_(1.0)
        model.optimizer.step()
        return norm.item(), unequal(before, values(model)), model.optimizer.last_step_skipped

    assert on_ranks(2, scene, updates=[Update("**", rule)]) == [(0.0, [], False)] * 2


def test_tiny_second_moments_survive_a_checkpoint(tmp_path):
    def moments(model):
        entries = model.checkpoint_tensors()
        return [entry.tensor for entry in entries if entry.key.endswith(".exp_avg_sq")]

    def save(_rank, model):
        for moment in moments(model):
            moment.fill_(1e-12)
        save_checkpoint(tmp_path / "saved", model, {})

    def load(_rank, model):
        load_checkpoint(tmp_path / "saved", model)
        whole = torch.cat(moments(model))
        return whole.numel() > 0 and bool((whole == torch.tensor(1e-12)).all())

    options = {"model": TiedModel(), "formats": [Cast("**", torch.bfloat16)]}
    on_ranks(1, save, **options)
    assert on_ranks(1, load, **options) == [True]


class TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(4, 6)
        self.narrow = nn.Linear(6, 3, dtype=torch.bfloat16)

    def forward(self, x):
        return self.narrow(self.wide(x).bfloat16()).float()


@each_form
def test_one_block_trains_weights_of_two_dtypes(options):
    torch.manual_seed(0)
    model = nn.Module()
    model.layers = nn.ModuleList([TwoDtypes()])
    x = torch.randn(5, 4)
    plain = copy.deepcopy(model)
    plain.layers[0](x).square().sum().backward()
    expected = {name: p.grad for name, p in plain.named_parameters()}

    def scene(_rank, ours):
        (group,) = [group for group in ours.plan.groups if group.atoms]
        before = values(ours)
        ours.layers[0](x).square().sum().backward()
        local = pieces(ours)
        ours.optimizer.step()
        dtypes = {atom.weight_dtype for atom in group.atoms}
        return dtypes, local, sorted(unequal(before, values(ours)))

    for dtypes, local, changed in on_ranks(2, scene, model=model, **options):
        assert dtypes == {torch.float32, torch.bfloat16}
        assert sorted(local) == changed == sorted(expected)
        agree(local, expected, rtol=2e-2, atol=1e-2)


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x, *, both):
        return self.a(x).sum() + (self.b(x).sum() if both else 0)


@each_form
@pytest.mark.parametrize("world", [1, 2])
def test_a_layer_that_is_first_used_in_the_last_microbatch_gets_its_fp32_gradient(world, options):
    def scene(rank, model):
        x = torch.full((2, 4), rank.rank + 1.0, dtype=torch.bfloat16)
        model(x, both=False).backward()
        model(x, both=True).backward()
        return pieces(model)

    mean = 2 * sum(range(1, world + 1)) / world  # two rows of each rank's constant
    options = options | {"formats": [Cast("**", torch.bfloat16)], "groups": ["a", "b"]}
    for local in on_ranks(world, scene, model=TwoLayers(), **options):
        for name, factor in (("a.weight", 2), ("b.weight", 1)):
            _, piece = local[name]
            assert piece.dtype == torch.float32
            assert torch.equal(piece, torch.full_like(piece, factor * mean))


class Recomputing(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(6, 6)  # of the root group
        self.layers[1].idle = nn.Parameter(torch.ones(2))  # its group is never complete

    def forward(self, x):
        for layer in [*self.layers, self.last]:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=self.reentrant))
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_leaves_nothing_gathered(reentrant):
    torch.manual_seed(0)
    model = Recomputing(reentrant=reentrant)
    x = torch.randn(3, 6).requires_grad_()
    plain = copy.deepcopy(model)
    plain(x).square().sum().backward()

    def scene(_rank, ours):
        ours(x).square().sum().backward()
        state = ours._sharded
        ready = [group.plan.label for group in state.weights.values() if group.ready]
        bytes_ = [root.tensor for root in state.buffers.roots if ".weights.slot" in root.name]
        return ready, all((slot == 0xFF).all() for slot in bytes_), len(bytes_), pieces(ours)

    for ready, released, slots, local in on_ranks(2, scene, model=model, **POISONED):
        assert (ready, released) == ([], True)
        assert slots >= 2
        del local["layers.1.idle"]
        agree(local, {name: p.grad for name, p in plain.named_parameters()})


@each_form
def test_a_deep_copy_is_refused_with_what_to_do_instead(options):
    def scene(_rank, model):
        for part in (model, model.layers[0], model.gain):
            with pytest.raises(RuntimeError, match=r"got deepcopy.*full_state_dict\(\)"):
                copy.deepcopy(part)
        model(ids()).sum().backward()
        model.optimizer.step()

    on_ranks(2, scene, **options)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))
        self.layers = nn.ModuleList([nn.Linear(5, 3)])

    def forward(self, x):
        return self.layers[0](x @ self.weight.t())

    def gen(self, x):
        return functional.linear(x @ self.weight.t(), self.layers[0].weight)


@each_form
def test_a_method_that_skips_forward_has_its_weights_and_gradients(options):
    torch.manual_seed(0)
    model = Generator()
    x = torch.randn(2, 4)
    plain = copy.deepcopy(model)
    plain.gen(x).square().sum().backward()
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}

    def scene(_rank, ours):
        with torch.no_grad():
            first = ours.gen(x)
        ours.gen(x).square().sum().backward()
        local = {name: local for name, local in pieces(ours).items() if name in expected}
        ours.optimizer.step()
        with torch.no_grad():
            return first, local, ours.gen(x), ours.full_state_dict()

    for first, local, later, state in on_ranks(2, scene, model=model, **options):
        torch.testing.assert_close(first, plain.gen(x).detach())
        agree(local, expected)
        updated = Generator()
        updated.load_state_dict(state)
        torch.testing.assert_close(later, updated.gen(x).detach())


class Adapted(nn.Module):
    """A frozen BF16 layer with trainable FP32 adapters of rank 4."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 64, dtype=torch.bfloat16).requires_grad_(False)
        self.down = nn.Linear(64, 4, bias=False)
        self.up = nn.Linear(4, 64, bias=False)

    def forward(self, x):
        return self.base(x.bfloat16()).float() + self.up(self.down(x))


@each_form
def test_frozen_weights_get_no_copy_no_gradient_and_no_state(options):
    adapters = 2 * 4 * 64 * 4  # bytes

    def scene(_rank, model):
        before = values(model)
        for _ in range(2):
            model(torch.ones(3, 64)).square().sum().backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        frozen, trainable = model.plan.atoms
        own = model._sharded.buffers.atoms[frozen.name]
        bytes_ = {row.role: row.local for row in model.plan.forecast().rows}
        return (
            (frozen.weight_dtype, frozen.main_dtype, trainable.weight_dtype),
            (own.main_weight, own.main_grad, own.gradients),
            bytes_,
            sorted(model.optimizer.state_dict()["state"]),
            unequal(before, values(model)),
            model.base.weight.grad,
        )

    for dtypes, buffers, bytes_, state, changed, grad in on_ranks(
        2, scene, model=Adapted(), **options
    ):
        assert dtypes == (torch.bfloat16, None, torch.float32)
        assert buffers == (None, None, None)
        assert bytes_["gradient slots"] == adapters
        assert bytes_["gradient sums"] == adapters // 2
        assert bytes_["main weights"] == 0
        assert bytes_["optimizer state"] == 2 * adapters // 2
        assert sorted(state) == sorted(changed) == ["down.weight", "up.weight"]
        assert grad is None


def test_weights_that_are_unfrozen_later_are_an_error_instead_of_standing_still():
    def scene(_rank, model):
        model.base.weight.requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"'base\.weight'.*before fully_shard"):
            model(torch.ones(3, 64))

    on_ranks(1, scene, model=Adapted())


class Tied(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.head = nn.Linear(16, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


@pytest.mark.parametrize("world", [2, 3])
def test_every_row_of_a_tied_weight_with_uneven_rows_is_trained(world):
    vocabulary = 4 * world + 1
    torch.manual_seed(0)
    model = Tied(vocabulary).double()
    rows = torch.randint(0, vocabulary, (10, world, 8))

    def loss(model, step, rank):
        return functional.cross_entropy(model(rows[step, rank, :-1]), rows[step, rank, 1:])

    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for step in range(10):
        for rank in range(world):
            (loss(plain, step, rank) / world).backward()
        optimizer.step()
        optimizer.zero_grad()

    def scene(rank, ours):
        for step in range(10):
            loss(ours, step, rank.rank).backward()
            ours.optimizer.step()
            ours.optimizer.zero_grad()
        return ours.full_state_dict()["head.weight"]

    updates = [Update("**", AdamW(lr=1e-2))]
    for weight in on_ranks(world, scene, model=model, updates=updates):
        assert (weight != model.head.weight).any(1).all()
        torch.testing.assert_close(weight, plain.head.weight.detach(), rtol=1e-9, atol=1e-11)


def test_a_parameter_without_gradient_takes_no_step():
    def scene(_rank, model):
        before = values(model)
        for _ in range(2):
            model(ids()).square().sum().backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        changed = unequal(before, values(model))
        return model.checkpoint_scalars()["step"], changed

    for steps, changed in on_ranks(2, scene):
        idle = {name for name, step in steps.items() if step == 0}
        assert idle == {f"layers.{i}.{name}" for i in range(3) for name in ("unused", "empty")}
        assert set(steps.values()) == {0, 2}
        assert idle.isdisjoint(changed)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_norm_is_that_of_the_whole_gradient_on_every_rank(world):
    def scene(_rank, model):
        model(torch.ones(1, 4)).sum().backward()
        ours = model.optimizer.grad_norm().item()
        return ours, torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()

    assert on_ranks(world, scene, model=nn.Linear(4, 4, bias=False)) == [(4.0, 4.0)] * world


def test_an_infinite_gradient_on_one_rank_is_an_infinite_norm_on_all():
    def scene(rank, model):
        x = torch.ones(1, 4)
        if rank.rank == 1:
            x[0, 2] = float("inf")
        before = values(model)
        model(x).sum().backward()
        norm = model.optimizer.clip_grad_norm_(1.0).item()
        others = model.weight.grad.local.isnan().any().item()
        model.optimizer.step()
        return norm, others, model.optimizer.last_step_skipped, unequal(before, values(model))

    results = on_ranks(2, scene, model=nn.Linear(4, 4, bias=False))
    assert results == [(float("inf"), False, True, [])] * 2


def test_one_norm_covers_parameters_that_are_sharded_over_different_ranks():
    sharding = [
        Sharding("layers.0.**", Degrees.for_hsdp(2)),
        Sharding("layers.1.**", Degrees(1, 2, 4)),
        Sharding("**", Degrees.for_zero3(4)),
    ]
    torch.manual_seed(0)
    plain = TiedModel().double()
    for rank in range(4):
        (functional.cross_entropy(plain(ids(rank)).flatten(0, 1), ids(0).flatten()) / 4).backward()
    expected = torch.nn.utils.get_total_norm(
        [p.grad for p in plain.parameters() if p.grad is not None]
    )

    def scene(rank, model):
        scores = model(ids(rank.rank)).flatten(0, 1)
        functional.cross_entropy(scores, ids(0).flatten()).backward()
        theirs = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        return theirs.item(), model.optimizer.clip_grad_norm_(0.1).item()

    for norms in on_ranks(4, scene, sharding=sharding):
        assert norms == pytest.approx((expected.item(), expected.item()), rel=1e-12)
