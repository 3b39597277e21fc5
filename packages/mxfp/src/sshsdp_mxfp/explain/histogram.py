"""Scale codes of blocks, counted: the range, the most common one, and a row of bars."""

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
LOWEST, NAN = 0, 255
_WIDTH = 32


def used(scales: Sequence[int]) -> range:
    """Codes from the lowest to the highest one that occurs, but for those of zeros and NaN.

    Code 0 is that of blocks of zeros (and of magnitudes near 2^-127), far from all others.

    Args:
        scales: 256 counts.
    """
    found = [code for code in range(LOWEST + 1, NAN) if scales[code]]
    return range(found[0], found[-1] + 1) if found else range(0)


def bars(scales: Sequence[int]) -> str:
    """The counts of `used` codes as characters; neighbours are added up where there are many."""
    codes = used(scales)
    step = max(1, -(-len(codes) // _WIDTH))
    sums = [
        sum(scales[code] for code in codes[start : start + step])
        for start in range(0, len(codes), step)
    ]
    top = max(sums, default=1)
    return "".join(BARS[-(-count * (len(BARS) - 1) // top)] if count else " " for count in sums)


def most(scales: Sequence[int]) -> int:
    """The code of most blocks."""
    return max(range(256), key=lambda code: scales[code])
