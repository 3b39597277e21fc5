"""Which rank holds which elements: nested ZeRO shards of flattened tensor lists, as integers."""

from .chain import ShardChain
from .degrees import Degrees
from .fragment import Fragment
from .layout import Layout
from .level import Level
from .placement import Placement
from .ranges import Range

__all__ = [
    "Degrees",
    "Fragment",
    "Layout",
    "Level",
    "Placement",
    "Range",
    "ShardChain",
]
