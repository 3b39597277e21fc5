"""Shared by the tests: an oracle that shares no code or formula with the package."""

from itertools import product

import pytest
from hypothesis import settings

# A busy machine is no fault: time is measured in benchmarks/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _split(elements, parts):
    size = len(elements) // parts
    return [elements[part * size : (part + 1) * size] for part in range(parts)]


def _holdings(numel, zero3, zero2, zero1, world):
    """Elements of every (level, rank), by counting ranks and cutting lists of elements."""
    held = {}
    coordinates = product(
        range(world // zero1), range(zero1 // zero2), range(zero2 // zero3), range(zero3)
    )
    for rank, (_, third, second, first) in enumerate(coordinates):
        elements = list(range(numel))
        held["full", rank] = elements
        held["zero3", rank] = elements = _split(elements, zero3)[first]
        held["zero2", rank] = elements = _split(elements, zero2 // zero3)[second]
        held["zero1", rank] = _split(elements, zero1 // zero2)[third]
    return held


def _nested(world):
    """Every legal (zero3, zero2, zero1) of a world."""
    sizes = range(1, world + 1)
    return [
        (zero3, zero2, zero1)
        for zero3, zero2, zero1 in product(sizes, sizes, sizes)
        if world % zero1 == 0 and zero1 % zero2 == 0 and zero2 % zero3 == 0
    ]


@pytest.fixture(scope="session")
def holdings():
    return _holdings


@pytest.fixture(scope="session")
def grid():
    """Every (world, (zero3, zero2, zero1)) of worlds up to 12."""
    return [(world, degrees) for world in range(1, 13) for degrees in _nested(world)]
