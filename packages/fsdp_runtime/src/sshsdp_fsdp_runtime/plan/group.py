"""Runtime groups: which parameters are gathered and reduced together, and in what order."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sshsdp_fsdp_runtime.plan.atom import AtomPlan
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec, ParameterSpec
from sshsdp_fsdp_runtime.plan.packs import PackPlan
from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.plan.rules import PlanError

ROOT = ""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One runtime group.

    Attributes:
        module: name of the module whose forward it serves; "" is the root.
        slot: index of the buffers it uses for gathered weights and gradients of a microbatch.
            Groups with the same slot take turns.
        atoms: its atoms, in order.
        packs: linear layers of the group that are computed as one.
    """

    module: str
    slot: int
    atoms: tuple[AtomPlan, ...]
    packs: tuple[PackPlan, ...] = ()

    @property
    def label(self) -> str:
        """Name for people."""
        return self.module or "root"


def group_modules(spec: ModelSpec, patterns: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the modules that become groups, in registration order; the root is implied.

    Without patterns, every element of every outermost ``nn.ModuleList`` is a group; a list that is
    empty, or whose elements have their names elsewhere, gives none.

    Raises:
        PlanError: a pattern matches no module.
    """
    given = patterns is not None
    if patterns is None:
        outer = [n for n in spec.lists if not any(_inside(n, other) for other in spec.lists)]
        patterns = [f"{name}.*" if name != ROOT else "*" for name in outer]
    for pattern in patterns:
        if given and not any(matches(pattern, module) for module in spec.modules):
            raise PlanError(
                f"expected every group pattern to match a module, got {pattern!r} that matches "
                "none; patterns of groups name modules, not parameters"
            )
    return tuple(m for m in spec.modules if any(matches(p, m) for p in patterns))


def _inside(module: str, other: str) -> bool:
    return module != other and (other == ROOT or module.startswith(other + "."))


def home_of(parameter: ParameterSpec, modules: Collection[str]) -> str:
    """The group that holds `parameter`: the innermost module that all its names share.

    A parameter tied across groups belongs to the root, which is resident the whole forward.
    """
    homes = {_innermost(alias, modules) for alias in parameter.aliases}
    return homes.pop() if len(homes) == 1 else ROOT


def _innermost(name: str, modules: Collection[str]) -> str:
    return next((outer for outer in _holders(name) if outer in modules), ROOT)


def _holders(name: str) -> Iterator[str]:
    """Names of the modules around `name`, the innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def assign_slots(modules: Sequence[str], slots: int) -> dict[str, int]:
    """Slot of every group and of the root.

    Groups that follow each other take turns over `slots` buffers. A group that holds another
    one inside, the root above all, is resident together with it, so it gets a slot of its own.
    """
    holders = {outer for module in modules for outer in _holders(module)}
    leaves = [module for module in modules if module not in holders]
    shared = min(slots, len(leaves))
    assigned = {module: index % shared for index, module in enumerate(leaves)}
    for module in [*modules, ROOT]:
        if module not in assigned:
            assigned[module] = shared
            shared += 1
    return assigned
