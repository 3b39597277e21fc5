"""``model.optimizer`` in the hands of a training loop: each use is torch's, or says why not."""

import copy

import pytest
import torch
from testing.models import TiedModel
from torch.optim.lr_scheduler import LambdaLR

from sshsdp_fsdp_runtime import Update, is_matrix
from sshsdp_updates import TorchRule

from .scenes import ids, on_ranks

WORLD = 2
MATRICES = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "maximize": True}
OTHERS = {"lr": 0.2}


def loss_of(model, seed):
    return model(ids(seed)).logsumexp(-1).mean()


class Plain:
    """One process with the data of all ranks."""

    def __init__(self, model):
        self.model = copy.deepcopy(model)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(
            [
                {"params": [p for p in trained if p.dim() < 2], **OTHERS},  # the gain comes first
                {"params": [p for p in trained if p.dim() >= 2], **MATRICES},
            ]
        )

    def backward(self, seed):
        (sum(loss_of(self.model, seed + rank) for rank in range(WORLD)) / WORLD).backward()


class Ours:
    """One of the ranks."""

    def __init__(self, model):
        self.model = model
        names = {name for group in model.optimizer.param_groups for name in group["param_names"]}
        assert names == {name for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = model.optimizer

    def backward(self, seed):
        loss_of(self.model, seed + self.model.transport.rank).backward()


def schedule(it):
    rates = LambdaLR(it.optimizer, [lambda step: 0.5**step, lambda step: 1.0 + step])
    for seed in (0, 10):
        it.backward(seed)
        it.optimizer.step()
        it.optimizer.zero_grad()
        rates.step()
    return rates.get_last_lr()


def edit_groups(it):
    others, matrices = it.optimizer.param_groups
    matrices["weight_decay"], matrices["lr"], others["maximize"] = 0.3, 0.05, True
    it.backward(0)
    it.optimizer.step()
    it.optimizer.zero_grad()


def keep_zeros(it):
    it.backward(0)
    it.optimizer.zero_grad(set_to_none=False)
    it.backward(10)
    it.optimizer.step()
    it.optimizer.zero_grad(set_to_none=True)


def step_hooks(it):
    seen = []
    hooks = [
        it.optimizer.register_step_pre_hook(lambda *_: seen.append("before")),
        it.optimizer.register_step_post_hook(lambda *_: seen.append("after")),
    ]
    it.backward(0)
    it.optimizer.step()
    for hook in hooks:
        hook.remove()
    it.optimizer.zero_grad()
    it.backward(10)
    it.optimizer.step()
    it.optimizer.zero_grad()
    return seen


def closure(it):
    def again():
        it.optimizer.zero_grad()
        it.backward(0)
        return 1.5

    loss = it.optimizer.step(again)
    it.optimizer.zero_grad()
    return loss


def go_back(it):
    """State and groups are what they were; weights are not the optimizer's."""
    saved = copy.deepcopy(it.optimizer.state_dict())
    edit_groups(it)
    it.optimizer.load_state_dict(saved)
    it.backward(20)
    it.optimizer.step()
    it.optimizer.zero_grad()


def scaler_that_is_off(it):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    it.backward(0)
    scaler.unscale_(it.optimizer)
    scaler.step(it.optimizer)
    scaler.update()
    it.optimizer.zero_grad()


def clip(it):
    it.backward(0)
    norm = torch.nn.utils.clip_grad_norm_(it.model.parameters(), 0.01)
    it.optimizer.step()
    it.optimizer.zero_grad()
    return round(norm.item(), 10)


USES = [schedule, edit_groups, keep_zeros, step_hooks, closure, go_back, scaler_that_is_off, clip]


def refusals(model):
    optimizer = model.optimizer
    loss_of(model, 0).backward()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    extra = {"params": [torch.nn.Parameter(torch.zeros(1))]}
    cases = [
        ("build a new ShardedOptimizer", lambda: optimizer.add_param_group(extra)),
        ("got a GradScaler; train in bfloat16", lambda: scaler.step(optimizer)),
        ("got a GradScaler; train in bfloat16", lambda: scaler.unscale_(optimizer)),
        ("got a copy or pickle of one", lambda: copy.deepcopy(optimizer)),
        (
            r"clip with its clip_grad_norm_\(\)",
            lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.0),
        ),
    ]
    for text, use in cases:
        with pytest.raises((TypeError, RuntimeError), match=text):
            use()
    optimizer.zero_grad()


@pytest.mark.parametrize("form", ["shared", "private"])
def test_each_use_of_the_optimizer_is_that_of_torch_or_says_what_to_do(form):
    torch.manual_seed(0)
    start = TiedModel().double()

    def scene(_rank, model):
        ours, theirs = Ours(model), Plain(start)
        for use in (*USES, *USES[:2]):
            assert use(ours) == use(theirs), use.__name__
            refusals(model)
            found = model.full_state_dict()
            for name, value in theirs.model.state_dict().items():
                torch.testing.assert_close(
                    found[name], value, rtol=1e-9, atol=1e-11, msg=f"{use.__name__}: {name}"
                )
        return True

    matrices, others = TorchRule(torch.optim.SGD, **MATRICES), TorchRule(torch.optim.SGD, **OTHERS)
    updates = [Update("**", matrices, where=is_matrix), Update("**", others)]
    assert on_ranks(WORLD, scene, model=start, updates=updates, form=form) == [True] * WORLD
