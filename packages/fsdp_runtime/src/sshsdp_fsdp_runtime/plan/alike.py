"""Groups that are planned alike: they differ in the names of their modules only."""

from collections.abc import Iterable
from dataclasses import dataclass

from sshsdp_fsdp_runtime.plan.atom import AtomPlan
from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.packs import PackPlan


@dataclass(frozen=True, slots=True)
class GroupKind:
    """Groups with equal atoms, so that what holds for the first holds for all.

    Attributes:
        groups: in the order of the forward pass; at least one.
    """

    groups: tuple[GroupPlan, ...]

    @property
    def first(self) -> GroupPlan:
        """The one that stands for all."""
        return self.groups[0]


def group_kinds(groups: Iterable[GroupPlan]) -> tuple[GroupKind, ...]:
    """The kinds of `groups`, in the order of the first of each."""
    alike: dict[tuple[object, ...], list[GroupPlan]] = {}
    for group in groups:
        key = (
            *(_content(group, atom) for atom in group.atoms),
            tuple(_operands(group, pack) for pack in group.packs),
        )
        alike.setdefault(key, []).append(group)
    return tuple(GroupKind(tuple(members)) for members in alike.values())


def _operands(group: GroupPlan, pack: PackPlan) -> tuple[tuple[str, ...], ...]:
    """What is packed, apart from the name of the module."""
    start = len(group.module) + 1 if group.module else 0
    return tuple(tuple(name[start:] for name in names) for names in pack.operands)


def _content(group: GroupPlan, atom: AtomPlan) -> tuple[object, ...]:
    """What an atom is, apart from the name of its module and its number."""
    start = len(group.module) + 1 if group.module else 0
    places = (atom.layout.placement(parameter.name) for parameter in atom.parameters)
    return (
        *(atom.degrees, atom.weight_dtype, atom.main_dtype, atom.rule_index, atom.form),
        *(atom.layout.numel, tuple(unit.name for unit in atom.units)),
        tuple((p.name[start:], p.shape) for p in atom.parameters),
        tuple(unit.name for unit in atom.units),
        tuple((place.offset, place.numel) for place in places),
    )
