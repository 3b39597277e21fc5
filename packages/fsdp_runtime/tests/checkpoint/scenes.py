"""A sharded model on every rank of a world whose ranks may act as several nodes."""

import copy
from contextlib import contextmanager

from testing.ranks import run_ranks

from sshsdp_fsdp_runtime import fully_shard
from sshsdp_zerosm import connect


@contextmanager
def sharded(rank, model, *, topology=None, **options):
    """A sharded copy of `model` on this rank."""
    with connect(rank.rank, rank.world, rank.store, timeout=30, topology=topology) as transport:
        ours = fully_shard(copy.deepcopy(model), transport=transport, **options)
        yield ours
        ours.close()


def on_ranks(world, scene, *args, model, **options):
    """Run ``scene(rank, sharded model, *args)`` on every rank."""

    def main(rank):
        with sharded(rank, model, **options) as ours:
            return scene(rank, ours, *args)

    return run_ranks(main, world, timeout=120)
