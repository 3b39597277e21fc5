"""An average of sharded weights is torch's average of whole ones, in use, and in checkpoints."""

import warnings
from functools import cache

import pytest
import torch
import torch.distributed.checkpoint as dcp
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sshsdp_fsdp_runtime import Cast, ExponentialAverage, Sharding, Update
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD

from .scenes import ids, on_ranks, sharded

STEPS, SAVED, DECAY, DATA = 5, 2, 0.7, 3
OPTIONS = {"updates": [Update("**", SGD(lr=0.3, momentum=0.5))]}


def fresh():
    torch.manual_seed(0)
    return TiedModel().double()


def losses_of(model, step, seeds):
    return [model(ids(10 * step + seed)).logsumexp(-1).mean() for seed in seeds]


@cache
def reference():
    """Per step: weights of the average, of the model, and what the average says."""
    model = fresh()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.3, momentum=0.5)
    history = []
    for step in range(STEPS):
        (sum(losses_of(model, step, range(DATA))) / DATA).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        with torch.no_grad():
            scores = average(ids(7))
        history.append((copies(average.module.state_dict()), copies(model.state_dict()), scores))
    return history


def copies(state):
    return {name: value.clone() for name, value in state.items()}


def train(model, average, steps):
    """All data on every rank, so that any number of ranks trains alike."""
    history = []
    for step in steps:
        for loss in losses_of(model, step, range(DATA)):
            (loss / DATA).backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
        average.update()
        with average.applied(), torch.no_grad():
            scores, averaged = model(ids(7)), copies(model.full_state_dict())
        history.append((averaged, copies(model.full_state_dict()), scores))
    return history


def check(found, expected):
    for (averaged, weights, scores), (wanted, plain, said) in zip(found, expected, strict=True):
        torch.testing.assert_close(averaged, wanted, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(weights, plain, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(scores, said, rtol=1e-10, atol=1e-12)


def train_and_save(rank, folder, options):
    with sharded(rank, fresh(), **OPTIONS, **options) as model:
        average = ExponentialAverage(model, DECAY)
        found = train(model, average, range(SAVED))
        save_checkpoint(folder / "model", model, {})
        save_checkpoint(folder / "average", average, {"step": SAVED})
        return found + train(model, average, range(SAVED, STEPS))


def load_and_train(rank, folder):
    with sharded(rank, TiedModel().double(), **OPTIONS) as model:
        average = ExponentialAverage(model, 0.1)
        load_checkpoint(folder / "model", model)
        assert load_checkpoint(folder / "average", average) == {"step": SAVED}
        assert (average.decay, average.updates) == (DECAY, SAVED)
        return train(model, average, range(SAVED, STEPS))


@pytest.mark.parametrize(
    ("degrees", "form", "new"),
    [
        (Degrees(1, 1, 1), "auto", 2),
        (Degrees(1, 1, 2), "private", 3),
        (Degrees(3, 3, 3), "shared", 1),
    ],
    ids=str,
)
def test_it_is_torchs_average_also_after_a_restart_in_another_world(degrees, form, new, tmp_path):
    options = {"sharding": [Sharding("**", degrees)], "form": form}
    for found in run_ranks(train_and_save, degrees.zero1, tmp_path, options, timeout=60):
        check(found, reference())
    for found in run_ranks(load_and_train, new, tmp_path, timeout=60):
        check(found, reference()[SAVED:])
    plain = {
        name: torch.full_like(value, torch.nan) for name, value in fresh().state_dict().items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp.load({"model": plain}, checkpoint_id=tmp_path / "average")
    torch.testing.assert_close(plain, reference()[SAVED - 1][0], rtol=1e-10, atol=1e-12)


def test_weights_in_another_dtype_are_casts_of_the_average():
    def scene(_rank, model):
        average = ExponentialAverage(model, 0.5)
        with model.unsharded("gain") as full:
            full["gain"].fill_(1.0)
        average.update()
        with model.unsharded("gain") as full:
            full["gain"].fill_(1.0 + 2.0**-7)
        average.update()  # 1 + 2^-8, which bfloat16 has not
        with average.applied(), torch.no_grad():
            computed, exact = model.gain.detach().clone(), model.full_state_dict()["gain"]
        return computed.dtype, computed.tolist(), exact.tolist(), model.gain.tolist()

    for dtype, computed, exact, after in on_ranks(2, scene, formats=[Cast("**", torch.bfloat16)]):
        assert dtype is torch.bfloat16
        assert computed == torch.tensor(exact).bfloat16().tolist() == [1.0, 1.0]
        assert exact == [1 + 2.0**-8] * 2
        assert after == [1 + 2.0**-7] * 2


def test_what_would_mix_the_average_and_the_weights_is_refused():
    def scene(_rank, model):
        average = ExponentialAverage(model, 0.5)
        before = copies(model.full_state_dict())
        model(ids()).sum().backward()
        text = r"after the block of applied\(\), got it inside"
        uses = {
            "a change of weights": model.optimizer.step,
            "a change of weights again": lambda: model.load_state_dict(before),
            "an update of the average": average.update,
            "an average": average.applied().__enter__,
            "a checkpoint of the average": lambda: list(average.checkpoint_tensors()),
        }
        with pytest.raises(ZeroDivisionError), average.applied():  # noqa: PT012
            for what, use in uses.items():
                with pytest.raises(RuntimeError, match=f"{what.removesuffix(' again')} {text}"):
                    use()
            raise ZeroDivisionError
        after = model.full_state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        model.optimizer.step()
        model.close()
        for use in (average.update, average.applied().__enter__):
            with pytest.raises(RuntimeError, match="expected an open model"):
                use()
        return True

    assert on_ranks(2, scene) == [True, True]


def test_a_plain_model_or_another_decay_is_refused():
    with pytest.raises(TypeError, match=r"after fully_shard\(\), got TiedModel"):
        ExponentialAverage(TiedModel(), 0.9)

    def scene(_rank, model):
        for decay in (1.0, -0.1, float("nan")):
            with pytest.raises(ValueError, match=r"a decay in \[0, 1\), got"):
                ExponentialAverage(model, decay)
        average = ExponentialAverage(model, 0.0)
        average.decay = 2.0
        with pytest.raises(ValueError, match=r"a decay in \[0, 1\), got 2.0"):
            average.update()

    on_ranks(1, scene)
