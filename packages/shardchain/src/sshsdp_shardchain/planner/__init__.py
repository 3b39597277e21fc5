"""Placing members so that cuts miss their units."""

from .member import Member, Pack
from .plan import plan_layout

__all__ = ["Member", "Pack", "plan_layout"]
