"""Packed operands: which bytes of an atom's lists the parameters of a pack take."""

from collections.abc import Iterator
from dataclasses import dataclass

from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.packs import PackPlan


@dataclass(frozen=True, slots=True)
class PackedOperand:
    """Parameters that lie tight in the lists of w and g', and are one matrix or vector there.

    Attributes:
        pack: that they belong to.
        names: of the parameters, in order.
        atom: name of the atom whose lists they lie in.
        offsets: of each from the start of a list, in bytes.
        nbytes: of each.
    """

    pack: PackPlan
    names: tuple[str, ...]
    atom: str
    offsets: tuple[int, ...]
    nbytes: tuple[int, ...]

    def describe(self) -> str:
        """One line."""
        kind = "biases" if self.names == self.pack.biases else "weights"
        each = " + ".join(f"{nbytes:,}" for nbytes in self.nbytes)
        return f"{kind}: {each} bytes from {self.offsets[0]:,} on in the lists of {self.atom}"


def packed_operands(group: GroupPlan) -> Iterator[PackedOperand]:
    """The operands of a group's packs, in their order."""
    homes = {parameter.name: atom for atom in group.atoms for parameter in atom.parameters}
    for pack in group.packs:
        for names in pack.operands:
            atom = homes[names[0]]
            places = [atom.layout.placement(name) for name in names]
            size = atom.weight_dtype.itemsize
            yield PackedOperand(
                pack,
                names,
                atom.name,
                tuple(place.offset * size for place in places),
                tuple(place.numel * size for place in places),
            )
