"""A model is used by one thread at a time, which may be any."""

import threading

import pytest
from testing.models import TiedModel

from sshsdp_fsdp_runtime import fully_shard

from .scenes import ids


def in_a_thread(work):
    """What `work` raised in a thread of its own, or None."""
    raised = []

    def run():
        try:
            work()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.fixture
def model():
    sharded = fully_shard(TiedModel())
    yield sharded
    sharded.close()


def test_a_backward_inside_the_backward_of_another_thread_is_refused_and_changes_nothing(model):
    model(ids()).sum().backward()
    expected = model.layers[0].up.weight.grad.local.clone()
    model.zero_grad()
    ours, theirs = model(ids()).sum(), model(ids(1)).sum()
    refused = []
    model.layers[1].up.weight.register_hook(
        lambda _: refused or refused.append(in_a_thread(theirs.backward))
    )
    ours.backward()
    assert "one thread at a time to use a model, got a backward while another" in str(refused[0])
    assert model.layers[0].up.weight.grad.local.equal(expected)
    model.optimizer.step()


def test_threads_may_take_turns(model):
    for _ in range(2):
        assert in_a_thread(lambda: model(ids()).sum().backward()) is None
        assert in_a_thread(model.optimizer.step) is None
