"""Devices that aren't there: what they can do is declared, and libraries are played on CPUs."""

# ruff: noqa: ARG002, ARG005 - signatures are those of what is played

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from sshsdp_mxfp.gemm import choice, provider
from sshsdp_mxfp.gemm.choice import GemmCapabilities
from sshsdp_mxfp.gemm.provider import Provider


@pytest.fixture(autouse=True)
def forget_choices():
    """Choices and the import of DeepGEMM are remembered; tests declare their own."""
    choice._choose_once.cache_clear()
    provider.load.cache_clear()
    yield
    choice._choose_once.cache_clear()
    provider.load.cache_clear()


@pytest.fixture
def declare(monkeypatch):
    """Say what every device can do, the CPU included."""

    def set_capabilities(arch, deep_gemm=None):
        if deep_gemm is None:
            found = Provider("", dict.fromkeys(provider.FUNCTIONS, "no deep_gemm"))
        else:
            found = provider.inspect_module(deep_gemm)
        able = GemmCapabilities("cuda", arch, found, True, True)
        monkeypatch.setattr(choice, "probe", lambda device: able)
        monkeypatch.setattr(provider, "load", lambda: deep_gemm)
        for name in ("deep_gemm", "block128"):
            monkeypatch.setattr(f"sshsdp_mxfp.gemm.{name}.load", lambda: deep_gemm)
        return able

    return set_capabilities


def code_values(codes):
    """E8M0 codes as powers of two, by their definition."""
    return 2.0 ** (codes.to(torch.float64) - 127)


def bytes_of_words(words, blocks):
    """Scales of [rows, words] int32: the lowest byte is the first block."""
    every = [(words >> (8 * byte)) & 255 for byte in range(4)]
    return torch.stack(every, -1).flatten(-2)[..., :blocks]


class Played:
    """DeepGEMM's compiled functions as its wrappers call them, in float64, by its host checks."""

    def __init__(self, major):
        self.major, self.calls = major, []

    def init(self, *_):
        pass

    def get_mk_alignment_for_contiguous_layout(self):
        return 128

    def _major(self, tensor):
        assert tensor.dim() in (2, 3)
        if tensor.dim() == 3:
            assert tensor.stride(0) == tensor.shape[-2] * tensor.shape[-1]
        assert 1 in tensor.stride()[-2:]
        k_major = tensor.stride(-1) == 1
        pitch = tensor.stride(-2) if k_major else tensor.stride(-1)
        assert pitch * tensor.element_size() % 16 == 0
        assert tensor.data_ptr() % 16 == 0
        return k_major

    def _side(self, data, scales, recipe):
        assert data.dtype == torch.float8_e4m3fn
        k_major = self._major(data)
        *groups, rows, k = data.shape
        down, across = recipe
        shape = (*groups, -(-rows // down))
        if self.major == 10:
            assert (scales.dtype, down, across) == (torch.int32, 1, 32)
            assert scales.shape == (*shape, -(-k // 128))
            assert scales.stride(-2) == 1 or rows == 1
            assert scales.stride(-1) == -(-rows // 4) * 4
            if groups:
                assert scales.stride(-3) == scales.stride(-1) * scales.shape[-1]
            wide = code_values(bytes_of_words(scales, -(-k // 32)))
        else:
            assert k_major
            assert (scales.dtype, across) == (torch.float32, 128)
            assert scales.shape == (*shape, -(-k // 128))
            if down == 1:
                assert scales.stride() == (1, -(-rows // 4) * 4)
            else:
                assert scales.is_contiguous() or scales.mT.is_contiguous()
            wide = scales.double()
        wide = wide.repeat_interleave(down, -2)[..., :rows, :]
        return data.double() * wide.repeat_interleave(across, -1)[..., :k], k_major

    def fp8_fp4_gemm_nt(
        self, a, sfa, b, sfb, d, c, recipe, recipe_a, recipe_b, dims, no_cast, alpha, *epilogue
    ):
        self.calls.append("dense")
        assert (recipe is None) != (recipe_a is None)
        if recipe is not None:
            recipe_a, recipe_b = (recipe[0], recipe[2]), (recipe[1], recipe[2])
        left, _ = self._side(a, sfa, recipe_a)
        right, _ = self._side(b, sfb, recipe_b)
        self._major(d)
        assert d.stride(-1) == 1
        assert d.dtype in (torch.float32, torch.bfloat16)
        assert c is None or (c.dtype == d.dtype and c.data_ptr() == d.data_ptr())
        if self.major == 9:  # one kernel can't add, the other does nothing else
            if recipe_b[0] == 1:
                assert d.dtype == torch.float32
                assert c is not None
            else:
                assert d.dtype == torch.bfloat16
                assert c is None
        product = left @ right.mT
        d.copy_(product if c is None else product + c.double())

    def m_grouped_fp8_fp4_gemm_nt_contiguous(
        self, a, sfa, b, sfb, d, layout, recipe, recipe_a, recipe_b, dims, no_cast, psum, pad, *_
    ):
        self.calls.append("grouped")
        left, k_major = self._side(a, sfa, recipe_a)
        right, _ = self._side(b, sfb, recipe_b)
        assert k_major
        assert psum
        assert pad
        assert d.dtype == torch.bfloat16
        assert layout.dtype == torch.int32
        assert layout.shape == (len(b),)
        d.zero_()
        end = 0
        for group, stop in enumerate(layout.tolist()):
            start = -(-end // 128) * 128
            d[start:stop] = (left[start:stop] @ right[group].mT).to(d.dtype)
            end = stop

    def m_grouped_fp8_fp4_gemm_nt_masked(
        self, a, sfa, b, sfb, d, masked_m, expected_m, recipe, recipe_a, recipe_b, *_
    ):
        self.calls.append("masked")
        left, a_major = self._side(a, sfa, recipe_a)
        right, b_major = self._side(b, sfb, recipe_b)
        assert a_major
        assert b_major
        assert expected_m > 0
        assert masked_m.dtype == torch.int32
        assert d.dtype == torch.bfloat16
        d.fill_(float("nan"))
        for group, count in enumerate(masked_m.tolist()):
            d[group, :count] = (left[group, :count] @ right[group].mT).to(d.dtype)

    def k_grouped_fp8_gemm_tn_contiguous(
        self, a, sfa, b, sfb, d, ks, layout, c, recipe, dims, psum, padded, *_
    ):
        self.calls.append("k_grouped")
        assert tuple(recipe) == (1, 1, 32)
        assert all(tensor.is_contiguous() for tensor in (a, b, d, sfa, sfb))
        assert c.data_ptr() == d.data_ptr()
        assert d.dtype == torch.float32
        assert layout.tolist() == list(ks)
        assert all(k % 128 == 0 for k in ks)
        row = word = 0
        for group, k in enumerate(ks):
            words = -(-k // 128)
            sides = []
            for data, scales in ((a, sfa), (b, sfb)):
                assert scales.dtype == torch.int32
                codes = bytes_of_words(scales[word : word + words].mT, k // 32)
                wide = code_values(codes).repeat_interleave(32, 1)
                sides.append(data[row : row + k].double().mT * wide)
            d[group] += (sides[0] @ sides[1].mT).float()
            row, word = row + k, word + words
        assert word == len(sfa) == len(sfb)


def wrappers(compiled):
    """The provider's own Python functions, over functions that are played."""
    spec = find_spec("deep_gemm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no provider of deep_gemm is installed (sgl-deep-gemm on Linux x86-64)")
    folder = Path(next(iter(spec.submodule_search_locations)))
    tree = ast.parse((folder / "__init__.py").read_text())
    kept = []
    for node in tree.body:
        if isinstance(node, ast.Try):
            kept += [part for part in node.body if isinstance(part, ast.FunctionDef | ast.Assign)]
        elif isinstance(node, ast.FunctionDef) and node.name == "_parse_tensor_or_tuple":
            kept.insert(0, node)
    kept = [
        part
        for part in kept
        if isinstance(part, ast.FunctionDef)
        or not isinstance(part.value, ast.Attribute)
        or part.value.attr == "get_mk_alignment_for_contiguous_layout"
    ]
    kept = [part for part in kept if not _imports(part)]
    space = {"_C": compiled, "torch": torch, "_encode_epilogue": lambda _: (0, None, None, None)}
    exec(compile(ast.Module(kept, []), "deep_gemm", "exec"), space)
    version = (folder / "VERSION").read_text().strip()
    return SimpleNamespace(**space, __version__=version)


def _imports(node):
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)


@pytest.fixture
def deep_gemm():
    """DeepGEMM of a provider, for an architecture: `deep_gemm(10)`; calls in `_C.calls`."""
    return lambda major: wrappers(Played(major))


def unswizzled(scales, rows, blocks):
    """Codes of 128x4 tiles, by the nesting of the tiles."""
    tall, wide = -(-rows // 128), -(-blocks // 4)
    tiles = scales.view(torch.uint8).flatten().view(tall, wide, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(tall * 128, wide * 4)[:rows, :blocks]


class PlayedTorch:
    """torch's block-scaled products in float64, after its own checks with fake CUDA tensors."""

    def __init__(self):
        self.scaled_mm_itself, self.calls = functional.scaled_mm, []

    def scaled_mm(self, mat_a, mat_b, scale_a, recipe_a, scale_b, recipe_b, **options):
        self.calls.append("dense")
        arguments = mat_a, mat_b, scale_a, recipe_a, scale_b, recipe_b
        with FakeTensorMode():
            checked = self.scaled_mm_itself(*map(_as_cuda, arguments), **options)
        left, right = self._values(mat_a, scale_a), self._values(mat_b.mT, scale_b)
        assert checked.shape == (len(left), len(right))
        return (left @ right.mT).to(options["output_dtype"])

    def scaled_grouped_mm(
        self, mat_a, mat_b, scale_a, recipe_a, scale_b, recipe_b, *, offs, output_dtype, **swizzles
    ):
        self.calls.append("grouped")
        assert recipe_a == recipe_b == functional.ScalingType.BlockWise1x32
        swizzle = functional.SwizzleType.SWIZZLE_32_4_4
        assert swizzles == {"swizzle_a": swizzle, "swizzle_b": swizzle}
        operands = mat_a, mat_b, scale_a, scale_b
        with FakeTensorMode():  # the older form of the operator is the one with checks
            checked = torch._scaled_grouped_mm(
                *map(_as_cuda, operands), offs=_as_cuda(offs), out_dtype=output_dtype
            )
        ends = offs.tolist()
        starts = [0, *ends[:-1]]
        if mat_b.dim() == 3:
            left = self._values(mat_a, scale_a)
            result = torch.full(checked.shape, float("nan"), dtype=output_dtype)
            for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
                right = self._values(mat_b[group].mT, scale_b[group])
                result[start:end] = (left[start:end] @ right.mT).to(output_dtype)
            return result
        result = torch.full((len(ends), *checked.shape[-2:]), float("nan"), dtype=output_dtype)
        places = [0, 0]
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            sides = []
            for side, (data, scales) in enumerate(((mat_a, scale_a), (mat_b.mT, scale_b))):
                size = -(-len(data) // 128) * 128 * -(-(end - start) // 128) * 4
                own = scales.view(torch.uint8).flatten()[places[side] : places[side] + size]
                places[side] += size
                sides.append(self._values(data[:, start:end], own))
            if end > start:  # empty groups are left as they were
                result[group] = (sides[0] @ sides[1].mT).to(output_dtype)
        return result

    def _values(self, data, scales):
        rows, k = data.shape
        codes = unswizzled(scales, rows, -(-k // 32))
        return data.double() * code_values(codes).repeat_interleave(32, 1)[:, :k]


def _as_cuda(value):
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


@pytest.fixture
def torch_gemm(monkeypatch):
    """Play torch's block-scaled products on CPUs; calls in `.calls`."""
    played = PlayedTorch()
    for name in ("scaled_mm", "scaled_grouped_mm"):
        monkeypatch.setattr(functional, name, getattr(played, name))
    return played
