"""A small real training program, one rank of which may come to an end in any phase."""

import contextlib
import gc
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from integration.failure.victims import FATES, Phase, doom
from testing.ranks import Rank, run_ranks
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import Update, fully_shard, is_matrix
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_updates import AdamW, Muon
from sshsdp_zerosm import Topology, connect

WIDTH, VOCABULARY = 12, 11


class Model(nn.Module):
    """Matrices that are cut between ranks, so that Muon's units travel."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of token ids."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        scores: torch.Tensor = self.head(x)
        return scores


@dataclass(frozen=True)
class Case:
    """What happens to whom.

    Attributes:
        phase: when.
        fate: a name in FATES.
        victim: the rank.
        world: number of ranks.
        nodes: number of nodes that they act as.
        timeout: of the transport, seconds; short only where somebody is late.
    """

    phase: Phase
    fate: str
    victim: int
    world: int = 3
    nodes: int = 1

    @property
    def timeout(self) -> float:
        """Of the transport, seconds; short only where nothing but the time tells of the end."""
        unseen = self.phase.name in ("trade cards", "group")  # nobody can watch the rank yet
        return 3.0 if unseen or self.fate == "stop" else 60.0


@dataclass(frozen=True)
class Account:
    """What a rank has to say at the end.

    Attributes:
        kind: type of the error; "" for none.
        text: of the error.
        seconds: from the victim's end to the error.
        held: descriptors that it did not have at the start; memory aside, which a failed backward
            keeps as long as the process lives.
    """

    kind: str
    text: str
    seconds: float
    held: tuple[str, ...]


def build(transport: Any) -> Any:
    """The sharded model."""
    torch.manual_seed(0)
    updates = [Update("layers.**", Muon(lr=0.02), where=is_matrix), Update("**", AdamW(lr=0.01))]
    return fully_shard(Model(), updates=updates, transport=transport)


def train(model: Any, rank: int, steps: Iterable[int]) -> list[float]:
    """Losses of the steps, on this rank's data."""
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(10 * step + rank)
        for _ in range(2):
            ids = torch.randint(0, VOCABULARY, (2, 6), generator=generator)
            loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        model.optimizer.clip_grad_norm_(1.0)
        model.optimizer.step()
        model.optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@contextlib.contextmanager
def sharded(rank: Rank, nodes: int, timeout: float) -> Iterator[Any]:
    """The model on this rank, which lets go of everything at the end, whatever happens."""
    topology = Topology(nodes, rank.world // nodes)
    with (
        connect(rank.rank, rank.world, rank.store, timeout=timeout, topology=topology) as transport,
        contextlib.closing(build(transport)) as model,
    ):
        yield model


def everything(rank: Rank, folder: Path, nodes: int, timeout: float) -> None:
    """All that a run does: it trains, saves in both ways, loads, and leaves."""
    with sharded(rank, nodes, timeout) as model:
        train(model, rank.rank, range(1))
        save_checkpoint(folder / "1", model, {"step": 1})
        train(model, rank.rank, range(1, 2))
        model.full_state_dict()
        save_checkpoint(folder / "2", model, {"step": 2})
        pending = save_checkpoint(folder / "3", model, {"step": 3}, asynchronous=True)
        train(model, rank.rank, range(2, 3))
        pending.wait()
        load_checkpoint(folder / "2", model)
        model.transport.barrier()


def run(case: Case, folder: Path) -> list[Account | None]:
    """Every rank's account; None of a victim that could not give one."""
    dies = () if case.fate == "fail" else (case.victim,)
    return run_ranks(_rank_main, case.world, case, folder, timeout=60.0, expect_death=dies)


def _rank_main(rank: Rank, case: Case, folder: Path) -> Account:
    before = _descriptors()
    if rank.rank == case.victim:

        def strikes() -> None:
            rank.store.set("victim", str(os.getpid()))
            rank.store.set("struck", str(time.monotonic()))  # one clock for all processes

        doom(case.phase, FATES[case.fate], strikes)
    kind, text = "", ""
    try:
        everything(rank, folder, case.nodes, case.timeout)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    assert rank.store.check(["struck"]), f"{case.phase.name} was not reached: {kind}: {text}"
    seconds = time.monotonic() - float(rank.store.get("struck"))
    ended = rank.store.add("ended", 1)
    if case.fate == "stop" and ended == case.world - 1:
        os.kill(int(rank.store.get("victim")), signal.SIGKILL)
    gc.collect()
    return Account(kind, text, seconds, tuple(sorted(_descriptors() - before)))


def _descriptors() -> set[str]:
    """What this process has open, anonymous memory aside."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in found if not name.startswith("/memfd:")}
