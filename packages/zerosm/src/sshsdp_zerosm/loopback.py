"""All ranks in one thread: the reference that other transports equal bit for bit."""

import random
from collections.abc import Iterable, Sequence

from sshsdp_zerosm.arena import Arena, Memory, local_memory, padded
from sshsdp_zerosm.board import BARRIER, BOARD_BYTES, Board
from sshsdp_zerosm.errors import DeadlockError, TransportError
from sshsdp_zerosm.program import Phase, Program
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.transport import Transport
from sshsdp_zerosm.waiter import find_abort


class Loopback:
    """A world of ranks without processes.

    Args:
        world: number of ranks.
        timeout: what ``Transport.timeout`` says; nothing here takes time.
        topology: which ranks share a node; None means all. A Pull or a Reduce of memory on
            another node is refused by ``Transport.compile``.

    Attributes:
        transports: one per rank. Their waits never block: what isn't there yet is a DeadlockError.
            `barrier` and `idle` count, but don't wait, since one thread has done all that precedes.
    """

    def __init__(
        self, world: int, timeout: float = 300.0, *, topology: Topology | None = None
    ) -> None:
        if not isinstance(world, int) or world < 1:
            raise ValueError(f"expected world >= 1, got {world!r}; give an int")
        topology = Topology.single(world) if topology is None else topology
        if topology.world != world:
            raise ValueError(f"expected a topology of {world} ranks, got {topology}")
        boards = [Board.local() for _ in range(world)]
        memories = _Memories(world)
        self.transports: list[Transport] = [
            LoopbackTransport(rank, topology, timeout, boards, memories) for rank in range(world)
        ]

    def run(
        self,
        programs: Sequence[Program],
        phase: str,
        *,
        accumulate: bool = False,
        seed: int | None = None,
    ) -> None:
        """Run a phase on all ranks, operation by operation.

        Args:
            programs: the programs of all ranks, in rank order.
            phase: as for ``Program.run``.
            accumulate: as for ``Program.run``.
            seed: of the interleaving: after every operation any rank that can go on may be next.
                None goes round robin.

        Raises:
            DeadlockError: no rank can go on; names who waits for what.
        """
        if len(programs) != len(self.transports):
            raise ValueError(
                f"expected {len(self.transports)} programs, one per rank, got {len(programs)}"
            )
        for transport in self.transports:
            transport.check_usable()
        phases = [program.phase(phase) for program in programs]
        at = [0] * len(phases)
        generator = None if seed is None else random.Random(seed)
        while left := [rank for rank, done in enumerate(at) if done < len(phases[rank].steps)]:
            able = [rank for rank in left if phases[rank].steps[at[rank]].missing(0) is None]
            if not able:
                raise DeadlockError(_who_waits(phase, phases, at, left))
            for rank in able if generator is None else [generator.choice(able)]:
                if phases[rank].steps[at[rank]].missing(0) is None:
                    phases[rank].runs[at[rank]](accumulate)
                    at[rank] += 1
        for found, transport in zip(phases, self.transports, strict=True):
            found.count(transport.counters)


class LoopbackTransport(Transport):
    """One rank of a Loopback; alone in the world, an ordinary transport."""

    def __init__(
        self,
        rank: int,
        topology: Topology,
        timeout: float,
        boards: Sequence[Board],
        memories: "_Memories",
    ) -> None:
        waiter = _LoopbackWaiter(rank, boards)
        super().__init__(rank, topology.world, timeout, boards, waiter, topology)
        self.external_bytes = BOARD_BYTES
        self._memories = memories

    def barrier(self) -> None:
        """Count; see Loopback.transports."""
        self.check_usable()
        self._own.words[BARRIER] += 1

    def _agree(self, name: str, nbytes: int, shared: bool) -> None:
        self._memories.agree(self.rank, name, nbytes, shared)

    def _create(self, name: str, nbytes: int, shared: bool) -> Arena:
        memories = self._memories.claim(name, nbytes, shared, self.topology)
        if not shared or self.topology.local_rank(self.rank) == 0:
            self.external_bytes += padded(nbytes)
        return Arena(name, nbytes, shared=shared, rank=self.rank, memories=memories)

    def _forget(self, name: str) -> None:
        self._memories.forget(name)

    def _seal(self) -> None:
        pass

    def _disconnect(self) -> None:
        pass


class _Memories:
    """The arenas of all ranks, made when the first rank asks."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._known: dict[str, tuple[int, bool, list[Memory]]] = {}
        self._forgotten: dict[str, int] = {}

    def agree(self, rank: int, name: str, nbytes: int, shared: bool) -> None:
        """TransportError if an earlier rank asked for the arena differently."""
        if name in self._known and self._known[name][:2] != (nbytes, shared):
            known_bytes, known_shared, _ = self._known[name]
            raise TransportError(
                f"arena {name!r}: expected {known_bytes} bytes and shared={known_shared} as on the "
                f"ranks before, got {nbytes} and {shared} on rank {rank}"
            )

    def claim(self, name: str, nbytes: int, shared: bool, topology: Topology) -> list[Memory]:
        """All ranks' memories."""
        if name not in self._known:
            sharing = topology.ranks_per_node if shared else 1
            made = [local_memory(nbytes) for _ in range(topology.world // sharing)]
            memories = [made[rank // sharing] for rank in range(topology.world)]
            self._known[name] = (nbytes, shared, memories)
        return self._known[name][2]

    def forget(self, name: str) -> None:
        """One more rank has let go of an arena; with the last one it is gone."""
        self._forgotten[name] = self._forgotten.get(name, 0) + 1
        if self._forgotten[name] == self._world:
            del self._forgotten[name], self._known[name]


class _LoopbackWaiter:
    """Nothing can arrive while the only thread waits."""

    def __init__(self, rank: int, boards: Sequence[Board]) -> None:
        self.failure: TransportError | None = None
        self._rank = rank
        self._boards = boards

    def wait(self, source: int, word: int, need: int, channel: str) -> None:
        """Raise; see Waiter.wait."""
        if error := find_abort(self._boards):
            raise error
        raise DeadlockError(
            f"rank {self._rank} waits for rank {source}, channel {channel!r}: expected {need}, got "
            f"{self._boards[source].words[word]}, and no other thread will signal it; run programs "
            f"through Loopback.run"
        )

    def wake(self, word: int, to: Iterable[int]) -> None:
        """Nobody sleeps."""


def _who_waits(phase: str, phases: list[Phase], at: list[int], left: list[int]) -> str:
    lines = [f"rank {rank} waits for {phases[rank].steps[at[rank]].missing(0)}" for rank in left]
    return f"phase {phase!r}: no rank can go on\n" + "\n".join(lines)
