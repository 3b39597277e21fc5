"""Who multiplies follows from what a device can do, is said once, and is refused with reasons."""

import logging
from types import SimpleNamespace

import pytest
import torch

from sshsdp_mxfp import (
    E4M3,
    E5M2,
    MXFP8,
    BackendError,
    GemmCapabilities,
    GemmProblem,
    choose_gemm,
    mx_matmul,
    probe_gemm,
    quantize,
)
from sshsdp_mxfp.gemm import provider
from sshsdp_mxfp.gemm.provider import Provider

ALL = Provider("2.6.1", {})
NONE = Provider("", dict.fromkeys(provider.FUNCTIONS, "import deep_gemm raised OSError"))
DENSE, GROUPED = GemmProblem(), GemmProblem("grouped")
MASKED, K_GROUPED = GemmProblem("masked"), GemmProblem("k_grouped")
HYBRID = GemmProblem(elements=(E5M2, E4M3))
HOPPER_FORMAT = GemmProblem(blocks="fp8_block128")


def able(arch, deep_gemm=ALL, torch_has=True):
    return GemmCapabilities("cuda" if arch else "cpu", arch, deep_gemm, torch_has, torch_has)


@pytest.mark.parametrize(
    ("capabilities", "problem", "backend", "reason"),
    [
        (able(None), DENSE, "reference", "expected a CUDA device, got cpu"),
        (able((10, 0)), DENSE, "deep_gemm", "the fastest"),
        (able((10, 3)), K_GROUPED, "deep_gemm", "the fastest"),
        (able((10, 0)), HYBRID, "torch", "expected elements of E4M3 on both sides"),
        (able((10, 0), NONE), DENSE, "torch", "raised OSError"),
        (able((10, 0), NONE), GROUPED, "torch", "raised OSError"),
        (able((10, 0), NONE), MASKED, "reference", "no masked form"),
        (able((10, 0), NONE, torch_has=False), DENSE, "reference", "expected a torch with"),
        (able((9, 0)), DENSE, "reference", "no granularity of 32 on sm_90; FP8Block128"),
        (able((9, 0)), HOPPER_FORMAT, "deep_gemm", "the fastest"),
        (able((9, 0), NONE), HOPPER_FORMAT, "reference", "raised OSError"),
        (able((10, 0)), HOPPER_FORMAT, "reference", "expected sm_90 for scales of FP32"),
        (able((12, 0)), DENSE, "torch", "expected sm_100, got sm_120"),
        (able((12, 0)), GROUPED, "reference", "scaled_grouped_mm needs sm_100"),
        (able((8, 9)), DENSE, "reference", "scaled_mm needs sm_100"),
    ],
)
def test_automatic(capabilities, problem, backend, reason):
    choice = choose_gemm(capabilities, problem)
    assert choice.backend == backend
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("capabilities", "problem", "wish", "text"),
    [
        (able(None), DENSE, "torch", 'a CUDA device, got cpu; use backend="reference"'),
        (able((9, 0)), DENSE, "deep_gemm", "no granularity of 32 on sm_90"),
        (able((10, 0)), HYBRID, "deep_gemm", 'got E5M2 and E4M3; use backend="torch"'),
        (able((10, 0)), GemmProblem(elements=(E5M2, E5M2)), "torch", "not E5M2 on both sides"),
        (able((10, 0)), MASKED, "torch", 'no masked form .*; use backend="deep_gemm"'),
        (able((9, 0)), HOPPER_FORMAT, "torch", "expected MX blocks for scaled_mm"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled(capabilities, problem, wish, text):
    with pytest.raises(BackendError, match=text):
        choose_gemm(capabilities, problem, wish)


def test_a_wish_for_what_there_is_not():
    with pytest.raises(ValueError, match="deep_gemm, torch, reference, got 'cublas'"):
        choose_gemm(able(None), DENSE, "cublas")


def test_a_choice_is_logged_once(caplog):
    x = quantize(torch.ones(32, 32), MXFP8())
    with caplog.at_level(logging.INFO, "sshsdp_mxfp"):
        for _ in range(3):
            mx_matmul(x, x.mT)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "dense GEMMs of mx on cpu use reference" in record.getMessage()


def test_hopper_says_that_it_is_slow_and_what_is_fast(declare, caplog):
    declare((9, 0))
    x = quantize(torch.ones(32, 32), MXFP8())
    mx_matmul(x, x.mT)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "use reference" in record.getMessage()
    assert "FP8Block128 is its format there" in record.getMessage()


def test_deep_gemm_is_not_imported_for_cpus(monkeypatch):
    monkeypatch.setattr(provider, "import_module", lambda _: pytest.fail("imported"))
    found = probe_gemm(torch.device("cpu"))
    assert found.arch is None
    assert "no kernels for CPUs" in found.deep_gemm.why_not("dense")


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError, AssertionError])
def test_an_import_that_fails_is_a_reason(error, monkeypatch):
    def fail(name):
        raise error("libcuda.so.1: cannot open")

    monkeypatch.setattr(provider, "import_module", fail)
    found = provider.find()
    for kind in provider.FUNCTIONS:
        assert f"raised {error.__name__}" in found.why_not(kind)
        assert "libcuda.so.1" in found.why_not(kind)


def test_the_functions_of_a_provider_have_the_parameters(deep_gemm):
    found = provider.inspect_module(deep_gemm(10))
    assert found.version
    assert not found.missing


def compiled(text):
    """A function that has its signature in its docstring only."""

    class Compiled:
        __signature__ = "none"
        __doc__ = text

        def __call__(self):
            raise NotImplementedError

    return Compiled()


PAIR = "a: tuple, b: tuple, d: torch.Tensor"
UPSTREAM = {
    "fp8_gemm_nt": f"({PAIR}, c: object = None, recipe: object = None, recipe_a: object = None, "
    "recipe_b: object = None) -> None",
    "m_grouped_fp8_gemm_nt_contiguous": f"({PAIR}, grouped_layout: torch.Tensor, recipe_a: object, "
    "recipe_b: object, use_psum_layout: bool = False, ensure_zero_padding: bool = True) -> None",
    "m_grouped_fp8_gemm_nt_masked": f"({PAIR}, masked_m: torch.Tensor, expected_m: int, "
    "recipe_a: object, recipe_b: object) -> None",
    "k_grouped_fp8_gemm_tn_contiguous": f"({PAIR}, ks_cpu: object, grouped_layout: torch.Tensor, "
    "c: object, recipe: object) -> None",
}


def upstream(version, **changes):
    texts = UPSTREAM | changes
    functions = {name: compiled(name + text) for name, text in texts.items() if text}
    return SimpleNamespace(__version__=version, **functions)


def test_compiled_functions_are_read_by_their_docstrings():
    assert not provider.inspect_module(upstream("2.6.1+abc")).missing


@pytest.mark.parametrize(
    ("module", "kinds", "text"),
    [
        (upstream("2.6.0"), {"k_grouped"}, "expected deep_gemm >= 2.6.1 .*, got 2.6.0"),
        (upstream("2.6.1", fp8_gemm_nt=""), {"dense"}, "with fp8_gemm_nt, got 2.6.1 without it"),
        (
            upstream("2.6.1", fp8_gemm_nt=f"({PAIR}, c: object, recipe: object) -> None"),
            {"dense"},
            "parameters recipe_a, recipe_b, got 2.6.1",
        ),
    ],
)
def test_what_a_version_lacks(module, kinds, text):
    missing = provider.inspect_module(module).missing
    assert set(missing) == kinds
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(" ".join(missing.values()))
