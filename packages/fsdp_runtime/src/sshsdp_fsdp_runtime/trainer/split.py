"""Split: which pieces of a token stream are held out for validation."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sshsdp_fsdp_runtime.trainer.errors import InputError


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of the stream."""

    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Tokens in the piece."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Split:
    """Disjoint pieces that cover the stream, in stream order on each side."""

    train: tuple[Piece, ...]
    validation: tuple[Piece, ...]


def split_stream(document_lengths: Sequence[int], fraction: float) -> Split:
    """Hold out about `fraction` of the tokens.

    A piece is a document; a document longer than a quarter of the held-out share is cut into
    pieces of that length, so one file is enough. Pieces are chosen in the order of a hash of their
    index: independent of the run's seed, so that runs can be compared.

    Args:
        document_lengths: tokens of each document, in stream order.
        fraction: of the tokens, between 0 and 1.

    Raises:
        InputError: too few tokens for both sides.
    """
    total = sum(document_lengths)
    pieces = _pieces(document_lengths, max(1, int(total * fraction / 4)))
    if len(pieces) < 2:
        raise InputError(f"expected data to train on and to validate with, got {total} tokens")
    chosen: set[int] = set()
    held_out = 0
    for index in sorted(range(len(pieces)), key=_hash):
        if held_out >= total * fraction or len(chosen) == len(pieces) - 1:
            break
        chosen.add(index)
        held_out += pieces[index].numel
    return Split(
        tuple(piece for index, piece in enumerate(pieces) if index not in chosen),
        tuple(piece for index, piece in enumerate(pieces) if index in chosen),
    )


def _pieces(document_lengths: Sequence[int], longest: int) -> list[Piece]:
    pieces = []
    start = 0
    for length in document_lengths:
        stop = start + length
        pieces += [Piece(at, min(at + longest, stop)) for at in range(start, stop, longest)]
        start = stop
    return pieces


def _hash(index: int) -> bytes:
    return hashlib.sha256(str(index).encode()).digest()
