"""Messages of any length over a transport whose exchanges are bounded."""

import struct

from sshsdp_fsdp_runtime.checkpoint.protocol import CheckpointTransport

_LENGTH = struct.Struct("<q")


def exchange_all(transport: CheckpointTransport, payload: bytes) -> list[bytes]:
    """All ranks' payloads in rank order, in one exchange where all of them fit. Collective."""
    limit = transport.max_exchange_bytes
    room = limit - _LENGTH.size
    first = transport.exchange(_LENGTH.pack(len(payload)) + payload[:room])
    longest = max(_LENGTH.unpack_from(message)[0] for message in first)
    parts = [bytearray(message[_LENGTH.size :]) for message in first]
    for start in range(room, longest, limit):
        more = transport.exchange(payload[start : start + limit])
        for part, message in zip(parts, more, strict=True):
            part += message
    return [bytes(part) for part in parts]
