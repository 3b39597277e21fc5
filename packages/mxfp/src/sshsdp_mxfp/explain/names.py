"""Formats as text: ``e4m3:32x32:rceil``."""

from typing import cast

from sshsdp_mxfp.elements import ELEMENTS
from sshsdp_mxfp.explain.errors import UserError
from sshsdp_mxfp.formats import MXFP4, MXFP6, MXFP8, Format, Rule, block_text

DEFAULT = (
    "e4m3,e4m3:1x32:floor,e4m3:32x1,e4m3:32x32,e5m2,e5m2:32x32,e2m3,e3m2,e2m1,e2m1:1x32:floor,"
    "e2m1:32x32"
)
_KINDS = {element.name: kind for kind in (MXFP8, MXFP6, MXFP4) for element in kind.elements}


def name_of(fmt: Format) -> str:
    """The format as `parse_formats` reads it."""
    return f"{fmt.element}:{block_text(fmt.block)}:{fmt.rule}"


def parse_formats(text: str) -> list[Format]:
    """Formats of a list such as ``e4m3,e4m3:32x32,e2m1:1x32:floor``, each once.

    A format is an element (e4m3, e5m2, e2m3, e3m2, e2m1), then the block if it isn't 1x32, then the
    rule if it isn't rceil. Edges may be ragged.

    Raises:
        UserError: for anything else.
    """
    return list(dict.fromkeys(_parse(entry.strip()) for entry in text.split(",")))


def _parse(entry: str) -> Format:
    element, block, rule = (*entry.lower().split(":"), "", "")[:3]
    if element not in _KINDS or entry.count(":") > 2:
        raise UserError(
            f"expected formats of ELEMENT[:BLOCK[:RULE]] with an element of {', '.join(_KINDS)}, "
            f"as in e4m3 or e4m3:32x32:floor, got {entry!r}"
        )
    try:
        rows, columns = map(int, (block or "1x32").split("x"))
    except ValueError:
        raise UserError(f"expected a block as in 32x32, got {block!r} in {entry!r}") from None
    try:
        return _KINDS[element](
            (rows, columns), ELEMENTS[element], cast("Rule", rule or "rceil"), ragged="partial"
        )
    except ValueError as error:
        raise UserError(f"{error}; in {entry!r}") from error
