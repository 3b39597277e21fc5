"""Rules as people type them: ``pattern=value``; without ``pattern=`` for everything."""

import ast
import inspect
from collections.abc import Sequence

import sshsdp_updates
from sshsdp_fsdp_runtime.plan import Cast, Sharding, Update
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.planning.dtypes import dtype_of
from sshsdp_shardchain import Degrees
from sshsdp_updates import UpdateRule


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


def parse_cast(text: str) -> Cast:
    """``layers.**=bfloat16``.

    Raises:
        InputError: it reads otherwise.
    """
    pattern, value = _split(text)
    return Cast(pattern, dtype_of(value, "--cast"))


def parse_update(text: str) -> Update:
    """``layers.**=sgd(momentum=0.9)``: a rule of `sshsdp_updates` in any case, with arguments.

    Raises:
        InputError: no such rule, or not with these arguments.
    """
    pattern, value = _split(text)
    name, bracket, rest = value.partition("(")
    rule = _rules().get(name.strip().lower())
    if rule is None or (bracket and not rest.endswith(")")):
        raise InputError(
            f"--optimizer: expected one of {', '.join(sorted(_rules()))}, with arguments in"
            f" brackets where wanted, got {value!r}; 'layers.**=sgd(momentum=0.9)' is an example"
        )
    try:
        return Update(pattern, rule(**_arguments(bracket + rest)))
    except (ValueError, TypeError, SyntaxError) as error:
        raise InputError(f"--optimizer {value}: {error}") from error


def _arguments(text: str) -> dict[str, object]:
    """``(a=1, b=(2, 3))`` as keyword arguments; literals only, nothing is evaluated."""
    call = ast.parse(f"rule{text or '()'}", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise ValueError("expected arguments by name, as in sgd(momentum=0.9)")
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


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
