"""A socket to every other rank of the node, over which memory is handed over."""

import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping

from sshsdp_zerosm.card import Card
from sshsdp_zerosm.distress import Distress
from sshsdp_zerosm.errors import PeerDiedError, TransportError
from sshsdp_zerosm.shared_memory.peers import Peers

_HELLO = struct.Struct("<i32s")
_CREDENTIALS = struct.Struct("iII")
_SLICE = 0.05  # seconds between looks at the peers' health


class Mesh:
    """Connected sockets between all ranks of one node.

    Higher ranks connect to lower ones. Both ends check the other's user and process id with the
    kernel (SO_PEERCRED); the connecting end also says the listener's token.

    Args:
        rank: this rank.
        cards: of the node's ranks.
        peers: their health.
        distress: what ranks that can't go on have said.
        timeout: seconds that a wait may take.

    Attributes:
        notice: told of the rank that is waited for, now and then; of this rank when it is over.
    """

    def __init__(
        self,
        rank: int,
        cards: Mapping[int, Card],
        peers: Peers,
        distress: Distress,
        timeout: float,
    ) -> None:
        self._rank = rank
        self._cards = cards
        self._peers = peers
        self._distress = distress
        self._timeout = timeout
        self._sockets: dict[int, socket.socket] = {}
        self._guests: dict[int, socket.socket] = {}
        self.notice: Callable[[int], None] = lambda _peer: None

    def connect(self, listener: socket.socket) -> None:
        """Connect to the lower ranks and accept the higher ones; `listener` is the own socket."""
        for peer in (peer for peer in self._cards if peer < self._rank):
            connection = new_socket()
            self._sockets[peer] = connection
            try:
                connection.connect(self._cards[peer].socket_name)
                self._check_process(peer, connection)
                connection.send(_HELLO.pack(self._rank, self._cards[peer].token.encode()))
            except ConnectionError as error:  # refused, or accepted by the kernel and then gone
                raise self._gone(peer) from error
        self._welcome(listener)
        self._dismiss()
        self._distress.awaits(self._rank)

    def send(self, peer: int, tag: int, descriptor: int | None) -> None:
        """Hand a descriptor to `peer`, or tell it that there is none."""
        descriptors = [] if descriptor is None else [descriptor]
        try:
            socket.send_fds(self._sockets[peer], [tag.to_bytes(8, "little")], descriptors)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._gone(peer) from error

    def receive(self, peer: int, tag: int) -> int | None:
        """The descriptor that `peer` sent, or None if it sent word that there is none."""
        connection = self._sockets[peer]
        connection.settimeout(_SLICE)
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(
                    connection, 8, 1, socket.MSG_CMSG_CLOEXEC
                )
                break
            except TimeoutError:
                self._check(peer, deadline)
            except ConnectionResetError as error:
                raise self._gone(peer) from error
        if not message:
            raise self._gone(peer)
        self._distress.awaits(self._rank)
        self.notice(self._rank)
        got = int.from_bytes(message, "little")
        if got != tag:
            raise TransportError(f"expected hand-over {tag} from rank {peer}, got {got}")
        return descriptors[0] if descriptors else None

    def close(self) -> None:
        """Close all sockets."""
        self.notice = lambda _peer: None  # whoever was told is not kept alive
        for connection in self._sockets.values():
            connection.close()
        self._sockets.clear()
        self._dismiss()

    def _welcome(self, listener: socket.socket) -> None:
        """Return when all higher ranks are there.

        A rank may be slow to say who it is, and a stranger may never do.
        """
        deadline = time.monotonic() + self._timeout
        higher = [peer for peer in self._cards if peer > self._rank]
        with selectors.DefaultSelector() as speaking:
            speaking.register(listener, selectors.EVENT_READ)
            while missing := [peer for peer in higher if peer not in self._sockets]:
                self._check(missing[0], deadline)
                for key, _ in speaking.select(_SLICE):
                    if key.fileobj is listener:
                        guest = listener.accept()[0]
                        self._guests[guest.fileno()] = guest
                        speaking.register(guest, selectors.EVENT_READ)
                    else:
                        speaking.unregister(key.fd)
                        self._admit(self._guests.pop(key.fd))

    def _dismiss(self) -> None:
        """Close the connections of those that have not said who they are."""
        for guest in self._guests.values():
            guest.close()
        self._guests.clear()

    def _admit(self, connection: socket.socket) -> None:
        """Take a connection that has said something if it is a higher rank's; else drop it."""
        try:
            hello = connection.recv(_HELLO.size)
        except OSError:
            hello = b""
        if len(hello) == _HELLO.size:
            peer, token = _HELLO.unpack(hello)
            expected = peer > self._rank and peer in self._cards and peer not in self._sockets
            if expected and token == self._cards[self._rank].token.encode():
                self._check_process(peer, connection)
                self._sockets[peer] = connection
                return
        connection.close()

    def _check_process(self, peer: int, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        card = self._cards[peer]
        if (pid, uid) != (card.pid, card.uid):
            raise TransportError(
                f"expected process {card.pid} of user {card.uid} as rank {peer}, got process {pid} "
                f"of user {uid}"
            )

    def _check(self, peer: int, deadline: float) -> None:
        error = self._hopeless(peer)
        self._distress.awaits(peer)
        self.notice(peer)
        if error is None and time.monotonic() >= deadline:
            error = self._distress.timeout(peer, "hand-over", self._timeout)
        if error is not None:
            # Told before the sockets close, or the others would take this rank for the cause.
            self._distress.tell(error)
            raise error

    def _hopeless(self, peer: int) -> TransportError | None:
        """Why a wait for `peer` is, or None."""
        # Who gives up says why and then ends: seen to have ended, it has said so. That comes first.
        ended = self._peers.check(peer)
        return self._distress.hear() or ended

    def _gone(self, peer: int) -> TransportError:
        """The end of a connection: name the rank that died, if there is one, not who gave up."""
        return self._hopeless(peer) or PeerDiedError(
            f"rank {peer} died or gave up while it was connected to rank {self._rank}: look at its "
            f"output and start all ranks again",
            (peer,),
        )


def new_socket() -> socket.socket:
    """Message boundaries are kept, so a descriptor can't part from its message."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
