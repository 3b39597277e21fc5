"""A fork of a process that connected can't use the transport, and doesn't disturb its parent."""

import os
import pickle
import sys
import traceback
from multiprocessing import get_context

import pytest
import torch

from sshsdp_zerosm import Loopback, TransportError, all_gather_aliased


def forked(function):
    """What `function` returned in a fork of this process."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(theirs, pickle.dumps(function()))
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        result = pickle.loads(answer.read())
    os.waitpid(child, 0)
    return result


def test_every_use_in_a_fork_is_refused_and_the_parent_goes_on(layout):
    def rank_main(transport):
        arena = transport.arena("a", 64)
        gather = (
            transport.compile(
                all_gather_aliased("g", group=range(layout.world), world=layout.world)
            )
            if layout.topology.nodes == 1
            else None
        )
        calls = {
            "arena": lambda: transport.arena("b", 8),
            "seal": transport.seal,
            "exchange": lambda: transport.exchange(b"x"),
            "publish": transport.publish,
            "barrier": transport.barrier,
            "idle": transport.idle,
            "abort": lambda: transport.abort("from the fork"),
            "check": transport.check_process,
        }
        if gather is not None:
            calls["run"] = lambda: gather.run("gather")

        def child():
            texts = {}
            for name, call in calls.items():
                with pytest.raises(TransportError) as raised:
                    call()
                texts[name] = str(raised.value)
            with pytest.raises(ArithmeticError), transport:
                raise ArithmeticError  # aborts and closes
            transport.close()
            with pytest.raises(TransportError, match="got a fork of it"):
                transport.barrier()
            return texts

        texts = forked(child)
        assert set(texts) == set(calls)
        expected = f"expected the process that connected as rank {transport.rank}, got a fork of it"
        assert all(text.startswith(expected) for text in texts.values())
        assert not transport.forked
        for _ in range(2):
            assert len(transport.exchange(b"y")) == layout.world
            transport.barrier()
        assert arena.tensor().sum() == 0
        return True

    assert all(layout.run_connected(rank_main))


def test_children_that_only_exit_and_workers_that_load_data_are_fine(layout):
    def rank_main(transport):
        process = get_context("fork").Process(target=lambda: None)
        process.start()
        process.join()
        loader = torch.utils.data.DataLoader(
            [torch.ones(2)] * 4, num_workers=1, multiprocessing_context="fork"
        )
        total = sum(float(batch.sum()) for batch in loader)
        transport.barrier()
        return process.exitcode, total

    assert layout.run_connected(rank_main) == [(0, 8.0)] * layout.world


def test_a_world_without_shared_memory_may_be_used_in_a_fork():
    transport = Loopback(1).transports[0]
    assert forked(lambda: transport.exchange(b"x")) == [b"x"]
