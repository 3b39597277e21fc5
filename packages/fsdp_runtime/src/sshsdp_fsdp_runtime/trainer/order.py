"""Order: which window of the training tokens is sequence `index` of step `step`.

A pure function of (seed, step, index): nothing to save, the same after a resume and for any number
of ranks, and written out here so that no library's next version can change it.
"""

from dataclasses import dataclass

_MASK = (1 << 64) - 1
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Order:
    """Every window once per epoch, in an order of its own.

    Attributes:
        seed: of the order.
        tokens: length of the token array.
        context: tokens per window; each window also reads one token more, the last target.
        batch: sequences per step over all ranks.
    """

    seed: int
    tokens: int
    context: int
    batch: int

    @property
    def windows(self) -> int:
        """Windows per epoch; one less than fit, because each epoch starts at its own phase."""
        return (self.tokens - 1) // self.context - 1

    def start(self, step: int, index: int) -> int:
        """Position of the first token of sequence `index` (0 <= index < batch) of step `step`."""
        epoch, place = divmod(step * self.batch + index, self.windows)
        key = _mix(_mix(self.seed) ^ epoch)
        phase = _mix(key ^ 0x5EED) % self.context
        return phase + _permute(place, self.windows, key) * self.context


def _permute(place: int, count: int, key: int) -> int:
    """A keyed permutation of range(count): a Feistel network, walked until it lands inside.

    The network permutes a power of four that is less than four times `count` (or 4), so a walk
    takes fewer than four tries on average.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mix(key ^ (number << 56) ^ right) & mask)
        place = left << half | right
        if place < count:
            return place


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64 bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31
