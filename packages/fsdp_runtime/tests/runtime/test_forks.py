"""A fork of a rank can't use its model, and neither weights nor gradients of the rank change."""

import os
from functools import partial

import pytest
import torch

from sshsdp_fsdp_runtime import Sharding
from sshsdp_fsdp_runtime.plan import Votes
from sshsdp_fsdp_runtime.runtime.ballot import Ballot, Vote
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology, TransportError, connect

from .scenes import ids, on_ranks


def forked(function):
    """Whether `function` ended without an exception in a fork of this process."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def uses(model, optimizer, backward):
    gradient = model.gain.grad
    return [
        lambda: model(ids()),
        lambda: model.layers[0](torch.ones(1, 5, dtype=torch.float64)),
        *backward,
        optimizer.step,
        lambda: optimizer.clip_grad_norm_(1.0),
        lambda: gradient.mul_(2.0),
        lambda: model.gain.sum(),
        lambda: model.head.weight.sum(),
        lambda: model.optimizer,
        lambda: model.transport,
        model.zero_grad,
        model.join,
        model.full_state_dict,
        model.state_dict,
        lambda: model.load_state_dict({}),
        lambda: model.unsharded().__enter__(),
        lambda: list(model.checkpoint_tensors()),
    ]


def scene(_rank, model):
    optimizer = model.optimizer

    def train(between):
        model(ids()).square().mean().backward()
        loss = model(ids()).square().mean()

        def child(*backward):
            for use in uses(model, optimizer, backward):
                with pytest.raises(RuntimeError, match=r"the process that connected as .* a fork"):
                    use()
            model.close()

        if between:
            votes = model._sharded.buffers.arenas["votes"].tensor()
            before = votes.clone()
            assert forked(lambda: child(loss.backward))
            assert votes.equal(before)
        loss.backward()
        if between:
            optimizer.clip_grad_norm_(1.0)
            assert forked(child)  # gradients are final
        norm = optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        return norm.item()

    return [train(False), train(True), train(False)], model.full_state_dict()


def undisturbed(_rank, model):
    norms = []
    for twice in (False, True, False):
        for _ in range(2):
            model(ids()).square().mean().backward()
        if twice:
            model.optimizer.clip_grad_norm_(1.0)
        norms.append(model.optimizer.clip_grad_norm_(1.0).item())
        model.optimizer.step()
        model.optimizer.zero_grad()
    return norms, model.full_state_dict()


@pytest.mark.parametrize("form", ["shared", "private", "replicated"])
def test_a_fork_of_a_rank_is_refused_everything_and_changes_nothing(form):
    options = {"form": form}
    if form == "replicated":
        options = {"sharding": [Sharding("**", Degrees(1, 1, 1))]}
    [(norms, state), _] = on_ranks(2, scene, **options)
    [(expected, kept), _] = on_ranks(2, undisturbed, **options)
    assert norms == expected
    assert all(torch.equal(state[name], value) for name, value in kept.items())


@pytest.mark.parametrize("opened", [False, True])
def test_a_fork_is_refused_a_vote_before_it_writes_into_what_all_ranks_read(opened):
    votes = Votes(message_bytes=32, topology=Topology(1, 1))
    with connect(0, 1) as transport:
        arena = transport.arena("votes", votes.nbytes)
        ballot = Ballot(votes, transport, arena)
        if opened:
            ballot.open(1, 7)
        memory = arena.tensor()
        before = memory.clone()
        transport.leave_to_parent()  # what a fork begins with
        use = (
            partial(ballot.post, Vote((1, 1), (7, 7), 5)) if opened else partial(ballot.open, 1, 7)
        )
        with pytest.raises(TransportError, match="a fork of it"):
            use()
        assert memory.equal(before)
        assert (ballot.opened, ballot.posted) == (opened, False)
