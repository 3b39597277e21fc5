"""Names with repeats: ``layers.{48}.norm.weight`` stands for 48 names.

A part in braces is one of

- ``{n}``: every index from 0 to n - 1;
- ``{a:b}``: every index from a to b - 1, as in Python;
- ``{a,b,c:d}``: these, in ascending order.

A number may be the name of a size.
"""

import re
from collections.abc import Mapping
from math import prod

from sshsdp_fsdp_runtime.trainer.errors import InputError

_PLAIN = re.compile(r"[A-Za-z_]\w*|\d+")
_MOST = 1_000_000  # names of one pattern, and the largest index but one


def split_name(pattern: str, sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The choices for every part of a dotted name: one of them, or those of its braces.

    Raises:
        InputError: a part that is neither a name, a number nor braces; a pattern of more names
            than could be planned.
    """
    choices = [_choices(part, pattern, sizes) for part in pattern.split(".")]
    names = prod(map(len, choices))
    if names > _MOST:
        raise InputError(f"expected at most {_MOST:,} names of {pattern!r}, got {names:,}")
    return choices


def _choices(part: str, pattern: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    if _PLAIN.fullmatch(part):
        return (part,)
    if not (part.startswith("{") and part.endswith("}")):
        raise InputError(
            f"expected names, numbers and braces between the dots of {pattern!r}, got {part!r};"
            " write {48} for the indices 0 to 47, {1:48} to leave out 0"
        )
    pieces = part[1:-1].split(",")
    if len(pieces) == 1 and ":" not in pieces[0]:
        indices = set(range(_number(pieces[0], pattern, sizes)))
    else:
        indices = {index for piece in pieces for index in _indices(piece, pattern, sizes)}
    if not indices:
        raise InputError(f"expected at least one index in {part} of {pattern!r}, got none")
    return tuple(map(str, sorted(indices)))


def _indices(piece: str, pattern: str, sizes: Mapping[str, int]) -> range:
    start, colon, stop = piece.partition(":")
    first = _number(start, pattern, sizes)
    return range(first, _number(stop, pattern, sizes) if colon else first + 1)


def _number(text: str, pattern: str, sizes: Mapping[str, int]) -> int:
    text = text.strip()
    if text in sizes:
        return _bounded(sizes[text], pattern)
    if not text.isdecimal():
        known = ", ".join(sizes) or "none"
        raise InputError(
            f"expected a number or a size (known: {known}) in the braces of {pattern!r},"
            f" got {text!r}"
        )
    return _bounded(int(text), pattern)


def _bounded(number: int, pattern: str) -> int:
    if number > _MOST:
        raise InputError(
            f"expected numbers up to {_MOST:,} in the braces of {pattern!r}, got {number:,}"
        )
    return number
