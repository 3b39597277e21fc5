"""What ranks tell each other while they connect, and have nothing but the store."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from sshsdp_zerosm.errors import AbortedError, PeerDiedError, TransportError, WaitTimeoutError

_FAILED, _HERE, _AWAITS = "failed", "here", "awaits"
_PAUSE = 0.02  # seconds


class Distress:
    """Why some rank can't connect, and who waits for whom.

    Args:
        store: a part of the store that only this connection uses; None in a world of one.
        rank: this rank.
        world: number of ranks.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._awaited = rank

    def tell(self, error: BaseException) -> None:
        """This rank gives up: whoever waits hears why. The first one to tell is heard."""
        died = list(error.peers) if isinstance(error, PeerDiedError) else []
        text = f"rank {self._rank} can't connect: {type(error).__name__}: {error}"
        message = json.dumps([str(error) if died else text, died])
        if self._store is not None and not isinstance(error, AbortedError):
            with contextlib.suppress(RuntimeError):  # the store may have gone first
                self._store.compare_set(_FAILED, "", message)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tell of an error inside before what encloses this lets go of anything.

        A connection that ends without a reason would look like a death to the others.
        """
        try:
            yield
        except BaseException as error:
            self.tell(error)
            raise

    def hear(self) -> TransportError | None:
        """Why another rank has given up, or None."""
        if self._store is None or not self._store.check([_FAILED]):
            return None
        text, died = json.loads(self._store.get(_FAILED))
        return PeerDiedError(text, tuple(died)) if died else AbortedError(text)

    def awaits(self, peer: int) -> None:
        """This rank waits for `peer`, and not just for a moment; for itself: for nobody."""
        if peer != self._awaited:
            self._awaited = peer
            self._store.set(f"{_AWAITS}/{self._rank}", str(peer))

    def timeout(self, peer: int, channel: str, after: float) -> TransportError:
        """The error for a wait for `peer` that took `after` seconds; names whom that one awaits."""
        if heard := self.hear():
            return heard
        chain = [peer]
        while self._store.check([key := f"{_AWAITS}/{chain[-1]}"]):
            awaited = int(self._store.get(key))
            if awaited in chain:
                break
            chain.append(awaited)
        return WaitTimeoutError(self._rank, peer, channel, 1, 0, after, chain)

    def gather(self, timeout: float) -> None:
        """Return when all ranks have come here. Collective.

        Raises:
            TransportError: a rank gave up, or is late.
        """
        if self._store is None:
            return
        self._store.set(f"{_HERE}/{self._rank}", "")
        self._store.add(_HERE, 1)
        deadline = time.monotonic() + timeout
        while self._store.add(_HERE, 0) < self._world:
            if error := self.hear():
                raise error
            if time.monotonic() >= deadline:
                ranks = range(self._world)
                absent = [rank for rank in ranks if not self._store.check([f"{_HERE}/{rank}"])]
                raise self.timeout(min(absent, default=self._rank), "connect", timeout)
            time.sleep(_PAUSE)
