"""Check that all ranks run the same programs in the same sequence."""

import hashlib
import json
import threading
import time
from collections.abc import Iterable

_KEPT = 1024  # own places that a late message can still be compared with
_REPORTED = 32  # last runs that a report lists
_MULTIPLIER = 6364136223846793005
_MASK = 2**64 - 1


class Order:
    """One rank's sequence of runs, and what it knows about the others'.

    A run is a phase of a program or a collective call. Every message says how many its sender has
    started, and a hash over all of them; equal numbers must come with equal hashes. When they
    don't, every rank tells all others once what it has run (a report), and so all compose the same
    text.

    Attributes:
        place: (number of runs, hash over them).
        since: when the last one started (time.monotonic).
        differs: two ranks are known to have run different things.
    """

    def __init__(self, rank: int) -> None:
        self.place = (0, 0)
        self.since = time.monotonic()
        self.differs = False
        self._rank = rank
        self._texts: dict[int, str] = {}
        self._chains = [0] * _KEPT
        self._runs = [0] * _KEPT
        self._claims: dict[int, set[int]] = {}
        self._reports: dict[int, dict[int, str]] = {}
        self._lock = threading.Lock()

    def name(self, text: str) -> int:
        """A number that stands for one kind of run, the same on all ranks."""
        mark = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        self._texts[mark] = text
        return mark

    def enter(self, mark: int) -> None:
        """This rank starts a run."""
        with self._lock:
            count, chain = self.place
            count, chain = count + 1, (chain * _MULTIPLIER + mark) & _MASK
            self._chains[count % _KEPT] = chain
            self._runs[count % _KEPT] = mark
            self.place = count, chain
            self.since = time.monotonic()
            if self._claims and (claims := self._claims.pop(count, None)):
                self.differs |= claims != {chain}

    def compare(self, runs: int, chain: int) -> None:
        """A peer says where it is; `differs` tells whether that fits.

        A peer that is more than 1024 runs behind is not compared: it compares itself when it comes
        to where this rank's messages were sent.
        """
        with self._lock:
            count, own = self.place
            if runs > count:
                self._claims.setdefault(runs, set()).add(chain)
            elif count - runs < _KEPT:
                known = own if runs == count else self._chains[runs % _KEPT]
                self.differs |= known != chain

    def report(self) -> bytes:
        """The own last runs, as all will see them; the same whenever it is asked for."""
        with self._lock:
            if self._rank not in self._reports:
                count = self.place[0]
                self._reports[self._rank] = {
                    at: self._texts[self._runs[at % _KEPT]]
                    for at in range(max(1, count - _REPORTED + 1), count + 1)
                }
            return json.dumps(list(self._reports[self._rank].items())).encode()

    def add_report(self, peer: int, payload: bytes) -> None:
        """What `peer` has run."""
        with self._lock:
            self._reports[peer] = dict(json.loads(payload))

    def explain(self, ranks: Iterable[int]) -> str:
        """Who ran what where it first differs, by the reports."""
        with self._lock:
            reports = dict(self._reports)
        for at in sorted({at for report in reports.values() for at in report}):
            if len({report[at] for report in reports.values() if at in report}) > 1:
                place = f"as run number {at}"
                got = {rank: _account(reports.get(rank), at) for rank in ranks}
                break
        else:
            place = f"something else before the last {_REPORTED} runs, and last"
            got = {rank: _last(reports.get(rank)) for rank in ranks}
        listed = "; ".join(f"rank {rank}: {text}" for rank, text in got.items())
        return (
            f"expected the same programs on all ranks, compiled and run in the same order, got "
            f"{place}: {listed}. Between nodes a rank can't fetch what another doesn't send; make "
            f"what is run the same on all ranks, or use shared memory on one host"
        )

    def complete(self, ranks: Iterable[int]) -> bool:
        """Whether there is a report of each of `ranks`."""
        with self._lock:
            return all(rank in self._reports for rank in ranks)


def _account(report: dict[int, str] | None, at: int) -> str:
    if report is None:
        return "no answer"
    return report.get(at, "not there yet" if max(report, default=0) < at else "long past it")


def _last(report: dict[int, str] | None) -> str:
    return "no answer" if report is None else report.get(max(report, default=0), "nothing")
