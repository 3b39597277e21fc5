"""Parameters that are left alone: plain tensors of the user's own in a sharded model."""

from collections.abc import Sequence
from dataclasses import replace

from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec, ParameterSpec
from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.plan.rules import PlanError


def without_ignored(spec: ModelSpec, patterns: Sequence[str]) -> ModelSpec:
    """Move the parameters that match a pattern, under any of their names, to ``spec.ignored``.

    Raises:
        PlanError: a pattern matches none, or the model has no values yet.
    """

    def named(parameter: ParameterSpec, pattern: str) -> bool:
        return any(matches(pattern, alias) for alias in parameter.aliases)

    for pattern in patterns:
        if not any(named(parameter, pattern) for parameter in spec.parameters):
            raise PlanError(
                f"expected every pattern of `ignored` to match a parameter, got {pattern!r} that "
                "matches none; '*' stays within a name, '**' crosses dots"
            )
    if patterns and spec.initial != "given":
        raise PlanError(
            "expected a model with values where parameters are ignored, since nobody fills those "
            "in, got one without; build it outside of deferred_init() and not on the meta device"
        )
    ignored = tuple(p for p in spec.parameters if any(named(p, pattern) for pattern in patterns))
    kept = tuple(parameter for parameter in spec.parameters if parameter not in ignored)
    return replace(spec, parameters=kept, ignored=ignored)
