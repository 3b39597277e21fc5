"""Names of counters, their places on the boards, and what this rank has consumed."""

import hashlib
from collections.abc import Mapping, Sequence

from sshsdp_zerosm.board import CHANNELS, Board, channel_word
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.ops import Op, Signal, Wait
from sshsdp_zerosm.schedule import Schedule


class Cursor:
    """How many counts of one source's channel this rank has consumed.

    All programs of a transport share it: that is what makes a slot's credits span schedules.
    """

    __slots__ = ("_boards", "_rank", "_tag", "channel", "count", "source", "verified", "word")

    def __init__(
        self, rank: int, source: int, channel: str, word: int, boards: Sequence[Board]
    ) -> None:
        self.source = source
        self.channel = channel
        self.word = word
        self.count = 0
        self.verified = False
        self._rank = rank
        self._tag = channel_tag(channel)
        self._boards = boards

    def verify(self) -> None:
        """Check once that source and this rank mean the same channel by this word."""
        words = self._boards[self.source].words
        if words[self.word] == 0:
            return  # only credit so far: the source may not have compiled yet
        if words[self.word + 1] != self._tag:
            raise TransportError(
                f"expected channel {self.channel!r} at its place on rank {self.source}, got "
                f"another one: ranks {self._rank} and {self.source} compiled different schedules, "
                f"or in a different order; compile the same ones in the same order on all ranks"
            )
        self.verified = True


class Channels:
    """Places of channels, in order of first appearance in the compiled schedules."""

    def __init__(self, rank: int, boards: Sequence[Board]) -> None:
        self._rank = rank
        self._boards = boards
        self._index: dict[str, int] = {}
        self._targets: dict[tuple[str, int], tuple[int, ...]] = {}
        self._cursors: dict[tuple[str, int], Cursor] = {}

    def admit(self, schedule: Schedule, own: Mapping[str, Sequence[Op]]) -> None:
        """Give places to a schedule's channels.

        Of phases that are expanded per rank only the own rank's part is looked at: what peers do
        is for ``verify``.

        Args:
            schedule: whose channels are admitted.
            own: what this rank does in each phase.

        Raises:
            ValueError: a channel whose counter would serve two groups of ranks at once, or a wait
                for a count that nobody sends to this rank.
        """
        targets = dict(self._targets)
        waits: list[tuple[int, Wait]] = []
        for phase, ranks in schedule.phases.items():
            lazy = callable(ranks)
            for rank in (self._rank,) if lazy else range(schedule.world):
                for op in own[phase] if lazy else schedule.ops(phase, rank):
                    if isinstance(op, Signal):
                        known = targets.setdefault((op.channel, rank), tuple(sorted(op.to)))
                        if known != tuple(sorted(op.to)):
                            raise ValueError(
                                f"schedule {schedule.name!r}: channel {op.channel!r} of rank {rank}"
                                f" already signals ranks {known}, got {op.to}: use another name "
                                f"(slot) per group of ranks"
                            )
                    elif isinstance(op, Wait) and not lazy:
                        waits.append((rank, op))
        for rank, wait in waits:
            if rank not in targets.get((wait.channel, wait.source), ()):
                raise ValueError(
                    f"schedule {schedule.name!r}: rank {rank} waits for channel {wait.channel!r} "
                    f"of rank {wait.source}, which never signals it there"
                )
        self._targets = targets
        for name in schedule.channels:
            self._place(name)

    def word(self, channel: str) -> int:
        """The word of an admitted channel's counter, the same on every board."""
        return channel_word(self._index[channel])

    def cursor(self, source: int, channel: str) -> Cursor:
        """What this rank has consumed of `source`'s channel."""
        key = (channel, source)
        if key not in self._cursors:
            self._cursors[key] = Cursor(
                self._rank, source, channel, self.word(channel), self._boards
            )
        return self._cursors[key]

    def _place(self, name: str) -> None:
        if name in self._index:
            return
        if len(self._index) == CHANNELS:
            raise TransportError(
                f"expected at most {CHANNELS} channels, got one more ({name!r}): let schedules "
                f"share slots"
            )
        self._index[name] = len(self._index)
        self._boards[self._rank].words[self.word(name) + 1] = channel_tag(name)


def channel_tag(name: str) -> int:
    """A nonzero positive 63-bit number that stands for a channel's name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1 | 1
