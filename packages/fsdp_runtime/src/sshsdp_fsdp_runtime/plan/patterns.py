"""The pattern language of rules: ``*`` stays within one name, ``**`` crosses dots."""

import functools
import re


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    parts = pattern.split(".")
    text = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            # At the end: at least one name. Before others: any number of names, none included.
            text += r"[^.]+(\.[^.]+)*" if last else r"([^.]+\.)*"
            continue
        text += "".join(
            "[^.]*" if piece == "*" else re.escape(piece) for piece in re.split(r"(\*)", part)
        )
        text += "" if last else r"\."
    return re.compile(text)


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` names `name`.

    ``layers.*`` matches ``layers.0`` but not ``layers.0.mlp``; ``layers.**`` matches both;
    ``**.weight`` matches ``weight`` and ``layers.0.weight``; ``**`` matches every name.
    """
    return _compile(pattern).fullmatch(name) is not None
