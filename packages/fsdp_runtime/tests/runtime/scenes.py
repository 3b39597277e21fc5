"""Building blocks of the runtime's tests: a sharded model on every rank of a world."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from testing.models import TiedModel
from testing.ranks import Rank, run_ranks

from sshsdp_fsdp_runtime import fully_shard
from sshsdp_zerosm import connect


@contextmanager
def sharded(rank: Rank, model: torch.nn.Module, **options: Any) -> Iterator[Any]:
    """A sharded copy of `model` on this rank."""
    with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
        ours = fully_shard(copy.deepcopy(model), transport=transport, **options)
        yield ours
        ours.close()


def on_ranks(world: int, scene: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Run ``scene(rank, model, *args)`` on every rank, with an FP64 `TiedModel`."""
    torch.manual_seed(0)
    model = options.pop("model", None) or TiedModel().double()

    def main(rank: Rank) -> Any:
        with sharded(rank, model, **options) as ours:
            return scene(rank, ours, *args)

    return run_ranks(main, world, timeout=60)


def on_ranks_in_turn(
    world: int, scene: Callable[..., Any], cases: Sequence[dict[str, Any]]
) -> list[list[Any]]:
    """Per case what every rank returned, as `on_ranks` does for one; ranks start and meet once.

    A case is the options of `fully_shard`, and `model` where it isn't an FP64 `TiedModel`.
    """
    torch.manual_seed(0)
    default = TiedModel().double()

    def main(rank: Rank) -> list[Any]:
        answers = []
        with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
            for case in cases:
                options = {"model": default, "transport": transport} | case
                ours = fully_shard(copy.deepcopy(options.pop("model")), **options)
                try:
                    answers.append(scene(rank, ours))
                except BaseException as error:
                    error.add_note(f"in the case {case}")
                    raise
                ours.close()
        return answers

    return [list(answers) for answers in zip(*run_ranks(main, world), strict=True)]


def ids(seed: int = 0) -> torch.Tensor:
    """A batch of token ids."""
    return torch.randint(0, 13, (2, 6), generator=torch.Generator().manual_seed(seed))
