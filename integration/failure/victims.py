"""A rank that ends in the middle of things: where, and how."""

import importlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ZEROSM = "sshsdp_zerosm"
RUNTIME = "sshsdp_fsdp_runtime.runtime"
CHECKPOINT = "sshsdp_fsdp_runtime.checkpoint"


class OwnError(Exception):
    """What a victim raises: an error that is nobody else's."""


@dataclass(frozen=True)
class Phase:
    """A moment of a run: just before a call of a function.

    Attributes:
        name: of the moment.
        module: where the function is looked up.
        function: its name there, "Class.method" for a method.
        call: which call of it, from 1.
        nodes: number of nodes that it needs; None: any.
    """

    name: str
    module: str
    function: str
    call: int = 1
    nodes: int | None = None


PHASES = (
    Phase("trade cards", f"{ZEROSM}.meeting", "trade_cards"),
    Phase("connect", f"{ZEROSM}.shared_memory.mesh", "Mesh.connect"),
    Phase("control pages", f"{ZEROSM}.shared_memory.handover", "create"),
    Phase("group", f"{ZEROSM}.process_group.network", "open_group", nodes=2),
    Phase("plan", f"{RUNTIME}.fully_shard", "build_plan"),
    Phase("arena", f"{ZEROSM}.transport", "Transport.arena", 2),
    Phase("arena memory", f"{ZEROSM}.shared_memory.handover", "create", 3),
    Phase("initial values", f"{RUNTIME}.initial_values", "store", 2),
    Phase("forward", f"{RUNTIME}.weights", "WeightGroup.unshard", 5),
    Phase("backward", f"{RUNTIME}.gradient_group", "GradientGroup.announce", 2),
    Phase("reduction", f"{RUNTIME}.gradient_group", "GradientGroup.reduce", 2),
    Phase("vote", f"{RUNTIME}.ballot", "Ballot.post", 3),
    Phase("count", f"{RUNTIME}.ballot", "Ballot.collect", 3),
    Phase("finalize", f"{RUNTIME}.finishing", "Finishing.run", 2),
    Phase("outer reduction", f"{RUNTIME}.finishing", "Finishing.run", 4, nodes=2),
    Phase("idle", f"{ZEROSM}.transport", "Transport.idle", 3),
    Phase("send unit", f"{ZEROSM}.fragment_exchange", "TransportExchange.start", 2),
    Phase("await unit", f"{ZEROSM}.fragment_exchange", "TransportExchange.wait", 2),
    Phase("publish", f"{ZEROSM}.transport", "Transport.publish", 3),
    Phase("barrier", f"{ZEROSM}.transport", "Transport.barrier", 6),
    Phase("full state", f"{RUNTIME}.full_state", "full_value", 2),
    Phase("save: collect", f"{CHECKPOINT}.save", "_Save.collect", 2),
    Phase("save: open", f"{CHECKPOINT}.save", "_Save.open", 2),
    Phase("save: plan", f"{CHECKPOINT}.save", "_Save.plan", 2),
    Phase("save: write", f"{CHECKPOINT}.write", "LocalWrite.run", 2),
    Phase("save: commit", f"{CHECKPOINT}.write", "Write.commit", 2),
    Phase("background: write", f"{CHECKPOINT}.write", "LocalWrite.run", 3),
    Phase("background: commit", f"{CHECKPOINT}.write", "Write.commit", 3),
    Phase("load: prepare", f"{CHECKPOINT}.load", "_Load.prepare"),
    Phase("load: read", f"{CHECKPOINT}.load", "_Load.read"),
    Phase("load: finish", f"{CHECKPOINT}.load", "_Load.finish"),
)


def kill() -> None:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Alive, with all connections and memory, and never going on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    """An error of this rank alone."""
    raise OwnError("of this rank alone")


def leave() -> None:
    """The process ends without a word, but in order."""
    os._exit(3)


FATES: dict[str, Callable[[], None]] = {"kill": kill, "stop": stop, "fail": fail, "leave": leave}


def doom(phase: Phase, fate: Callable[[], None], before: Callable[[], None]) -> None:
    """Have `fate` strike this process in `phase`, and call `before` just before."""
    owner: Any = importlib.import_module(phase.module)
    *outer, name = phase.function.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    calls = 0

    def struck(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == phase.call:
            before()
            fate()
        return original(*args, **kwargs)

    setattr(owner, name, struck)
