"""DeepGEMM, if there is one: found, and asked what it can do, without trusting its version."""

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

Kind = Literal["dense", "grouped", "masked", "k_grouped"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Function:
    """A function of DeepGEMM that is called, and the parameters that the call relies on."""

    name: str
    parameters: tuple[str, ...]


FUNCTIONS: Mapping[Kind, Function] = {
    "dense": Function("fp8_gemm_nt", ("c", "recipe", "recipe_a", "recipe_b")),
    "grouped": Function(
        "m_grouped_fp8_gemm_nt_contiguous",
        ("recipe_a", "recipe_b", "use_psum_layout", "ensure_zero_padding"),
    ),
    "masked": Function("m_grouped_fp8_gemm_nt_masked", ("recipe_a", "recipe_b")),
    "k_grouped": Function("k_grouped_fp8_gemm_tn_contiguous", ("c", "recipe")),
}
# Packed scales with groups along K: upstream since this version, and in builds with the parameter.
_PACKED_GROUPS, _PACKED_PARAMETER = (2, 6, 1), "use_padded_sf_layout"


@dataclass(frozen=True)
class Provider:
    """What a module named deep_gemm offers, or why there is none.

    Attributes:
        version: as it says; empty where there is none.
        missing: for each kind of GEMM that can't be called, why.
    """

    version: str
    missing: Mapping[Kind, str]

    def why_not(self, kind: Kind) -> str | None:
        """Why a kind of GEMM can't be called; None if it can."""
        return self.missing.get(kind)


@cache
def load() -> Any:
    """The module, or the exception of its import as a text.

    Besides ImportError there are OSError, of builds that link libcuda where there is none, and
    errors of its own where it looks for a compiler. None of them may break programs for CPUs.
    """
    try:
        return import_module("deep_gemm")
    except Exception as error:
        reason = f"import deep_gemm raised {type(error).__name__}: {str(error).splitlines()[:1]}"
        logger.debug("%s", reason)
        return reason


def find() -> Provider:
    """Ask the installed module; imports it."""
    module = load()
    if isinstance(module, str):
        return Provider("", dict.fromkeys(FUNCTIONS, module))
    return inspect_module(module)


def inspect_module(module: Any) -> Provider:
    """What a module offers, by its version and the parameters of its functions."""
    version = str(getattr(module, "__version__", "unknown"))
    missing: dict[Kind, str] = {}
    for kind, wanted in FUNCTIONS.items():
        reason = _lacking(module, wanted, version)
        if reason is None and kind == "k_grouped" and not _packs_groups(module, wanted, version):
            reason = (
                f"expected deep_gemm >= {'.'.join(map(str, _PACKED_GROUPS))} for packed scales "
                f"with groups along K, got {version}"
            )
        if reason is not None:
            missing[kind] = reason
    return Provider(version, missing)


def parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Names of parameters: of a Python function, or by the docstring of a compiled one."""
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset(re.findall(r"\b(\w+)\s*:", function.__doc__ or ""))


def _lacking(module: Any, wanted: Function, version: str) -> str | None:
    function = getattr(module, wanted.name, None)
    if function is None:
        return f"expected deep_gemm with {wanted.name}, got {version} without it"
    lost = [name for name in wanted.parameters if name not in parameters(function)]
    if lost:
        return (
            f"expected {wanted.name} of deep_gemm with parameters {', '.join(lost)}, got "
            f"{version} without them"
        )
    return None


def _packs_groups(module: Any, wanted: Function, version: str) -> bool:
    if _PACKED_PARAMETER in parameters(getattr(module, wanted.name)):
        return True
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    return numbers >= _PACKED_GROUPS
