"""Which rank holds which elements: nested ZeRO shards of flattened tensor lists, as integers."""

from .chain import ShardChain
from .choice import Choice
from .cut import Cut
from .degrees import Degrees
from .exchange import ChainHolders, Exchange, Holders, Holding, Part, exchange, parts
from .fragment import Fragment
from .layout import Layout
from .level import Level
from .owners import Owners, Task
from .placement import Placement
from .placements import Placements
from .planner import Member, Pack, plan_layout
from .ranges import Range
from .unit import Box, Strip, Units

__all__ = [
    "Box",
    "ChainHolders",
    "Choice",
    "Cut",
    "Degrees",
    "Exchange",
    "Fragment",
    "Holders",
    "Holding",
    "Layout",
    "Level",
    "Member",
    "Owners",
    "Pack",
    "Part",
    "Placement",
    "Placements",
    "Range",
    "ShardChain",
    "Strip",
    "Task",
    "Units",
    "exchange",
    "parts",
    "plan_layout",
]
