"""State dicts by name: what is in them, and how one is compared and copied in."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sshsdp_shardchain import Fragment
from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.rule import UpdateRule

_NOT_HYPERPARAMETERS = ("params", "param_names", "rule")
_SHOWN = 8


@dataclass(frozen=True)
class StateFragment:
    """One state field of one parameter as this rank has it.

    Attributes:
        name: of the parameter.
        field: for example ``"exp_avg"``.
        shape: of the whole field: that of the parameter, (rows,) of a field per row, or () of one
            per tensor.
        fragment: which of its elements `tensor` holds; may be none.
        tensor: 1-D, a view of the live state.
        replicated: every rank has all of it, as of fields per row or tensor; one should save it.
    """

    name: str
    field: str
    shape: tuple[int, ...]
    fragment: Fragment
    tensor: Tensor
    replicated: bool = False


def state_fragments(flats: Iterable[FlatState]) -> Iterator[StateFragment]:
    """Yield every state field of every member except its step count."""
    for flat in flats:
        for index, member in enumerate(flat.source.members):
            for field in flat.source.rule.state_fields():
                yield StateFragment(
                    member.name,
                    field.name,
                    flat.shape(field.name, index),
                    flat.fragment(field.name, index),
                    flat.fragment_of(field.name, index),
                    flat.is_replicated(field.name),
                )


def live_state(flats: Iterable[FlatState]) -> dict[str, dict[str, Tensor]]:
    """Return views of all state, by parameter name."""
    return {
        member.name: flat.member_state(index)
        for flat in flats
        for index, member in enumerate(flat.source.members)
    }


def group_dict(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a param group with names in the place of parameters."""
    values = {key: value for key, value in group.items() if key not in _NOT_HYPERPARAMETERS}
    return {"rule": group["rule"], "params": list(group["param_names"]), **values}


def load(
    saved: Mapping[str, Any],
    state: Mapping[str, Mapping[str, Tensor]],
    groups: Sequence[dict[str, Any]],
    rules: Sequence[UpdateRule],
) -> None:
    """Copy `saved` into live state and param groups, all of it or nothing.

    Args:
        saved: as ``ShardedOptimizer.state_dict`` returns it.
        state: views of the live state, by name.
        groups: the live param groups.
        rules: theirs, in the same order.

    Raises:
        ValueError: listing everything that differs; nothing was changed.
    """
    if not {"state", "param_groups"} <= set(saved):
        raise ValueError(
            f"expected a state dict with 'state' and 'param_groups', got keys {_some(list(saved))}"
        )
    problems = _state_problems(saved["state"], state)
    matches = [_match(group, saved["param_groups"]) for group in groups]
    for group, match, rule in zip(groups, matches, rules, strict=True):
        problems += _group_problems(group, match, rule)
    if len(saved["param_groups"]) != len(groups):
        problems.append(f"expected {len(groups)} param groups, got {len(saved['param_groups'])}")
    if problems:
        raise ValueError(
            "this state dict belongs to another optimizer, nothing was loaded:\n  "
            + "\n  ".join(problems)
        )
    for name, fields in state.items():
        for field, tensor in fields.items():
            tensor.copy_(saved["state"][name][field])
    for group, match in zip(groups, matches, strict=True):
        group.update(_copied(match or {}))


def _state_problems(
    saved: Mapping[str, Mapping[str, Any]], state: Mapping[str, Mapping[str, Tensor]]
) -> list[str]:
    problems = _name_problems("parameters", state, saved)
    for name in (name for name in state if name in saved):
        problems += _name_problems(f"state of {name!r}", state[name], saved[name])
        for field, tensor in state[name].items():
            if field in saved[name] and _kind(saved[name][field]) != _kind(tensor):
                problems.append(
                    f"{field} of {name!r}: expected {_kind(tensor)}, got "
                    f"{_kind(saved[name][field])}"
                )
    return problems


def _group_problems(
    group: Mapping[str, Any], match: Mapping[str, Any] | None, rule: UpdateRule
) -> list[str]:
    title = f"param group of {_some(group['param_names'])}"
    if match is None:
        return [f"{title}: expected a group of exactly these parameters, got none"]
    if match.get("rule") != group["rule"]:
        return [f"{title}: expected rule {group['rule']!r}, got {match.get('rule')!r}"]
    missing = [name for name in rule.hyperparameters() if name not in match]
    if missing:
        return [f"{title}: missing hyperparameters {_some(missing)}"]
    try:
        rule.validate(match)
    except ValueError as error:
        return [f"{title}: {error}"]
    return []


def _match(
    group: Mapping[str, Any], saved: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the saved group of the same parameters; those without any go by rule."""
    names = set(group["param_names"])
    for candidate in saved:
        if set(candidate["params"]) == names and (names or candidate.get("rule") == group["rule"]):
            return candidate
    return None


def _name_problems(what: str, expected: Iterable[Any], got: Iterable[Any]) -> list[str]:
    expected, got = list(expected), list(got)
    missing = [name for name in expected if name not in set(got)]
    unexpected = [name for name in got if name not in set(expected)]
    problems = [f"{what}: missing {_some(missing)}"] if missing else []
    return problems + ([f"{what}: unexpected {_some(unexpected)}"] if unexpected else [])


def _some(names: Sequence[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"shape {tuple(value.shape)} of {value.dtype}"


def _copied(group: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in group.items() if key not in _NOT_HYPERPARAMETERS}
    return copy.deepcopy(values)
