"""Which library multiplies: a pure function of what a device can do, reported once."""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
from torch.nn import functional

from sshsdp_mxfp.elements import E4M3, Element
from sshsdp_mxfp.gemm import provider
from sshsdp_mxfp.gemm.provider import Kind, Provider

Backend = Literal["deep_gemm", "torch", "reference"]
Blocks = Literal["mx", "fp8_block128"]
logger = logging.getLogger(__name__)


class BackendError(RuntimeError):
    """A backend that was asked for by name can't do this here."""


@dataclass(frozen=True)
class GemmCapabilities:
    """What matters of a device and the installed libraries.

    Attributes:
        device: its type, "cpu" or "cuda".
        arch: compute capability of a CUDA device, as in (10, 0).
        deep_gemm: what DeepGEMM offers, or why there is none.
        scaled_mm: whether torch has `torch.nn.functional.scaled_mm`; likewise the next.
        scaled_grouped_mm: see above.
    """

    device: str
    arch: tuple[int, int] | None
    deep_gemm: Provider
    scaled_mm: bool
    scaled_grouped_mm: bool


@dataclass(frozen=True)
class GemmProblem:
    """What is to be multiplied, sizes aside.

    Attributes:
        kind: "dense"; "grouped", groups of rows one behind the other; "masked", groups of rows
            with room for the largest; "k_grouped", groups along the contracted dimension.
        elements: of both sides.
        blocks: "mx" (E8M0 per 32) or "fp8_block128" (FP32 per 128).
    """

    kind: Kind = "dense"
    elements: tuple[Element, Element] = (E4M3, E4M3)
    blocks: Blocks = "mx"


@dataclass(frozen=True)
class GemmChoice:
    """A backend, and why it was chosen."""

    backend: Backend
    reason: str


def probe(device: torch.device) -> GemmCapabilities:
    """Ask a device and the libraries; looks for DeepGEMM only where it could run."""
    arch = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if arch is not None and arch[0] in (9, 10):
        found = provider.find()
    else:
        place = "CPUs" if arch is None else f"sm_{arch[0]}{arch[1]}"
        none = f"deep_gemm has no kernels for {place}, only for sm_90 and sm_100"
        found = Provider("", dict.fromkeys(provider.FUNCTIONS, none))
    return GemmCapabilities(
        device.type,
        arch,
        found,
        hasattr(functional, "scaled_mm"),
        hasattr(functional, "scaled_grouped_mm"),
    )


def why_not(backend: Backend, able: GemmCapabilities, problem: GemmProblem) -> str | None:
    """Why a backend can't do it; None if it can. Limits of sizes are checked with the sizes."""
    if backend == "reference":
        return None
    if able.arch is None:
        return f"expected a CUDA device, got {able.device}"
    if backend == "deep_gemm":
        return _why_not_deep_gemm(able, able.arch, problem)
    return _why_not_torch(able, able.arch, problem)


def choose(
    able: GemmCapabilities, problem: GemmProblem | None = None, backend: Backend | None = None
) -> GemmChoice:
    """Choose what multiplies.

    Args:
        able: of the device.
        problem: default is a dense product of E4M3 in MX blocks.
        backend: a wish; None takes the first of deep_gemm, torch and reference that can do it.

    Raises:
        BackendError: if the wish can't be fulfilled, with the reason.
        ValueError: for another name.
    """
    problem = problem or GemmProblem()
    if backend is not None:
        if backend not in get_args(Backend):
            known = ", ".join(get_args(Backend))
            raise ValueError(f"expected a backend of {known}, got {backend!r}")
        reason = why_not(backend, able, problem)
        if reason is not None:
            instead = choose(able, problem).backend
            raise BackendError(f'{reason}; use backend="{instead}"')
        return GemmChoice(backend, "asked for")
    reasons: list[str] = []
    for candidate in get_args(Backend):
        reason = why_not(candidate, able, problem)
        if reason is None:
            return GemmChoice(candidate, "; ".join(reasons) or "the fastest")
        reasons.append(f"not {candidate}: {reason}")
    raise AssertionError("the reference can do everything")


def choose_for(device: torch.device, problem: GemmProblem, backend: Backend | None) -> Backend:
    """Choose for a device, and report it the first time."""
    return _choose_once(_key(device), problem, backend).backend


@cache
def _choose_once(device: torch.device, problem: GemmProblem, backend: Backend | None) -> GemmChoice:
    able = probe(device)
    choice = choose(able, problem, backend)
    slow = choice.backend == "reference" and able.device == "cuda" and backend is None
    names = f"{problem.kind} GEMMs of {problem.blocks} on {device}"
    logger.log(
        logging.WARNING if slow else logging.INFO,
        "%s use %s (%s)", names, choice.backend, choice.reason,
    )  # fmt: skip
    return choice


def _key(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _why_not_deep_gemm(
    able: GemmCapabilities, arch: tuple[int, int], problem: GemmProblem
) -> str | None:
    place = f"sm_{arch[0]}{arch[1]}"
    if problem.blocks == "fp8_block128":
        if arch[0] != 9:
            return f"expected sm_90 for scales of FP32, got {place}"
        if problem.kind != "dense":
            return f"expected a dense GEMM for FP8Block128, got {problem.kind}"
    elif arch[0] == 9:
        return f"deep_gemm has no granularity of 32 on {place}; FP8Block128 is its format there"
    elif arch[0] != 10:
        return f"expected sm_100, got {place}"
    if problem.elements != (E4M3, E4M3):
        return f"expected elements of E4M3 on both sides, got {_names(problem)}"
    return able.deep_gemm.why_not(problem.kind)


def _why_not_torch(
    able: GemmCapabilities, arch: tuple[int, int], problem: GemmProblem
) -> str | None:
    if problem.blocks == "fp8_block128":
        return "expected MX blocks for scaled_mm, got FP8Block128"
    if problem.kind == "masked":
        return "torch has no masked form for block scales"
    grouped = problem.kind != "dense"
    name = "scaled_grouped_mm" if grouped else "scaled_mm"
    if not (able.scaled_grouped_mm if grouped else able.scaled_mm):
        return f"expected a torch with torch.nn.functional.{name}, got {torch.__version__}"
    if arch[0] != 10 if grouped else arch[0] < 10:
        return f"{name} needs sm_100 for blocks of 32, got sm_{arch[0]}{arch[1]}"
    fine = {"e4m3"} if grouped else {"e4m3", "e5m2"}
    kinds = [element.name for element in problem.elements]
    if not fine.issuperset(kinds) or kinds == ["e5m2", "e5m2"]:
        wanted = "E4M3 on both sides" if grouped else "E4M3 or E5M2, not E5M2 on both sides"
        return f"expected elements of {wanted}, got {_names(problem)}"
    return None


def _names(problem: GemmProblem) -> str:
    return " and ".join(repr(element) for element in problem.elements)
