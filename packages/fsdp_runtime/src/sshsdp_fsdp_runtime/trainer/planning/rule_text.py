"""Rules as people type them: ``pattern=value``; without ``pattern=`` for everything."""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import sshsdp_updates
from sshsdp_fsdp_runtime.plan import Cast, Pack, Sharding, Update, is_matrix
from sshsdp_fsdp_runtime.plan.rules import works_on_units
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.planning.dtypes import dtype_of
from sshsdp_shardchain import Degrees
from sshsdp_updates import TensorUnit, UpdateRule, columns, experts, heads, pieces, whole

Made = TypeVar("Made", bound=Callable[..., Any])
_T = TypeVar("_T")

_UNITS: Mapping[str, Callable[..., TensorUnit]] = MappingProxyType(
    {unit.__name__: unit for unit in (columns, experts, heads, pieces, whole)}
)


def parse_degrees(text: str, option: str) -> Degrees:
    """Degrees as ``8,8,64`` (zero3,zero2,zero1), or one number for all three.

    Raises:
        InputError: not three numbers that divide each other.
    """
    parts = text.split(",")
    if len(parts) == 1:
        parts *= 3
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise InputError(
            f"{option}: expected degrees as zero3,zero2,zero1, got {text!r}; 8,8,64 shards weights"
            " and gradients over 8 ranks, and the optimizer over 64"
        )
    try:
        return Degrees(*map(int, parts))
    except ValueError as error:
        raise InputError(f"{option} {text}: {error}") from error


def parse_sharding(text: str) -> Sharding:
    """``layers.**=8,8,64``.

    Raises:
        InputError: it reads otherwise.
    """
    pattern, value = _split(text)
    return Sharding(pattern, parse_degrees(value, "--sharding"))


def parse_pack(text: str) -> Pack:
    """``layers.*.mlp=gate_proj,up_proj``.

    Raises:
        InputError: it reads otherwise.
    """
    pattern, value = _split(text)
    if "=" not in text:
        raise InputError(
            f"--packs: expected pattern=member,member, got {text!r};"
            " 'layers.*.mlp=gate_proj,up_proj' is an example"
        )
    try:
        return Pack(pattern, [member.strip() for member in value.split(",")])
    except ValueError as error:
        raise InputError(f"--packs {text}: {error}") from error


def parse_cast(text: str) -> Cast:
    """``layers.**=bfloat16``.

    Raises:
        InputError: it reads otherwise.
    """
    pattern, value = _split(text)
    return Cast(pattern, dtype_of(value, "--cast"))


def parse_update(text: str) -> Update:
    """``layers.**=sgd(momentum=0.9)`` or ``**.q_proj.weight=muon(lr=0.02)@heads(128)``.

    That is a rule of `sshsdp_updates`, in any case, with arguments where wanted; behind the ``@``
    the unit that it works on at once. A rule that works on matrices claims nothing else.

    Raises:
        InputError: no such rule or unit, or not with these arguments.
    """
    pattern, value = _split(text)
    rule_text, at, unit_text = value.partition("@")
    kind, arguments, named = _call(rule_text, _rules(), "rule")
    if arguments:
        raise InputError(
            f"--optimizer {value}: expected arguments by name, as in sgd(momentum=0.9)"
        )
    rule = _make(value, kind, [], named)
    unit: TensorUnit | None = None
    if at:
        unit = _make(value, *_call(unit_text, _UNITS, "unit"))
    return Update(pattern, rule, is_matrix if works_on_units(rule) else None, unit)


def _call(
    text: str, known: Mapping[str, Made], what: str
) -> tuple[Made, list[Any], dict[str, Any]]:
    """``name(1, a=2)``: what is called so, and its arguments; literals, nothing is evaluated."""
    name, bracket, rest = text.strip().partition("(")
    made = known.get(name.strip().lower())
    if made is None or (bracket and not rest.endswith(")")):
        raise InputError(
            f"--optimizer: expected one of the {what}s {', '.join(sorted(known))}, with arguments"
            f" in brackets where wanted, got {text!r}; 'layers.**=sgd(momentum=0.9)' and"
            " '**.q_proj.weight=muon@heads(128)' are examples"
        )
    try:
        call = ast.parse(f"f{bracket + rest or '()'}", mode="eval").body
    except (ValueError, SyntaxError) as error:
        raise InputError(
            f"--optimizer {text}: expected arguments as in {name.strip()}(1, name=2), got {error}"
        ) from error
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise InputError(f"--optimizer: expected one {what} and its arguments, got {text!r}")
    positional = [_literal(argument, text) for argument in call.args]
    return made, positional, {k.arg or "**": _literal(k.value, text) for k in call.keywords}


def _literal(argument: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(argument)
    except ValueError as error:
        raise InputError(
            f"--optimizer {text}: expected numbers, quoted texts, True, False, None, or lists of"
            f" them as arguments, got {ast.unparse(argument)}; write out its value"
        ) from error


def _make(text: str, made: Callable[..., _T], arguments: list[Any], named: dict[str, Any]) -> _T:
    try:
        return made(*arguments, **named)
    except (ValueError, TypeError) as error:
        signature = inspect.signature(made)
        takes = ""
        try:
            signature.bind(*arguments, **named)
        except TypeError:
            takes = f"; {made.__name__} takes {', '.join(signature.parameters) or 'nothing'}"
        raise InputError(f"--optimizer {text}: {error}{takes}") from error


def _rules() -> dict[str, type[UpdateRule]]:
    """The rules that come with `sshsdp_updates`, by name in small letters."""
    exported: Sequence[object] = [getattr(sshsdp_updates, name) for name in sshsdp_updates.__all__]
    return {
        rule.__name__.lower(): rule
        for rule in exported
        if isinstance(rule, type) and issubclass(rule, UpdateRule) and not inspect.isabstract(rule)
    }


def _split(text: str) -> tuple[str, str]:
    """Pattern and value; an ``=`` inside brackets belongs to the value."""
    pattern, equals, value = text.partition("=")
    if not equals or "(" in pattern:
        return "**", text.strip()
    if not pattern.strip() or not value.strip():
        raise InputError(f"expected pattern=value, got {text!r}")
    return pattern.strip(), value.strip()
