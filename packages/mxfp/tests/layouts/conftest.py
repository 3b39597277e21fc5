"""Definitions written out cell by cell, and code of others that defines the same layouts."""

import importlib
import sys
import types
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from sshsdp_mxfp.layouts import Float32Layout, PackedLayout, PlainLayout, SwizzledLayout


def up(size, step):
    return (size + step - 1) // step * step


class ByHand:
    """Storage as a list, from Python loops that walk memory in order."""

    @staticmethod
    def plain(codes):
        return [int(code) for row in codes.tolist() for code in row]

    @staticmethod
    def packed(codes):
        rows, blocks = codes.shape
        memory = bytearray()
        for column in range(0, up(blocks, 4), 4):
            for row in range(up(rows, 4)):
                word = 0
                for byte in range(4):
                    if row < rows and column + byte < blocks:
                        word |= int(codes[row, column + byte]) << (8 * byte)
                memory += word.to_bytes(4, "little")
        return list(memory)

    @staticmethod
    def float32(codes):
        rows, blocks = codes.shape
        return [
            2.0 ** (int(codes[row, block]) - 127) if row < rows else 1.0
            for block in range(blocks)
            for row in range(up(rows, 4))
        ]

    @staticmethod
    def swizzled(codes):
        """By nesting: rows of tiles, tiles, 32 lines of 16 bytes, 4 quarters, 4 blocks."""
        rows, blocks = codes.shape
        memory = []
        for top in range(0, up(rows, 128), 128):
            for left in range(0, up(blocks, 4), 4):
                for line in range(32):
                    for quarter in range(4):
                        for block in range(left, left + 4):
                            row = top + 32 * quarter + line
                            inside = row < rows and block < blocks
                            memory.append(int(codes[row, block]) if inside else 0)
        return memory


BY_HAND = {
    PlainLayout: ByHand.plain,
    PackedLayout: ByHand.packed,
    Float32Layout: ByHand.float32,
    SwizzledLayout: ByHand.swizzled,
}


@pytest.fixture(scope="session")
def by_hand():
    """Storage of a matrix of codes (uint8) in a layout class, as a list."""
    return lambda layout, codes: BY_HAND[layout](codes)


@pytest.fixture(scope="session")
def make_codes():
    """Codes that differ from those around them, any byte but 255."""

    def make(*shape, seed=0):
        return torch.randint(
            0, 255, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
        )

    return make


@pytest.fixture(scope="session")
def deep_gemm():
    """The module of DeepGEMM's fallbacks in torch, loaded without its CUDA library."""
    spec = find_spec("deep_gemm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no provider of deep_gemm is installed (sgl-deep-gemm on Linux x86-64)")
    folder = spec.submodule_search_locations[0]
    parent, utils = types.ModuleType("fallbacks"), types.ModuleType("fallbacks.utils")
    parent.__path__, utils.__path__ = [folder], [f"{folder}/utils"]
    # All that the fallbacks ask of the library: 16 bytes in elements.
    parent._C = SimpleNamespace(get_tma_aligned_size=lambda mn, size: up(mn * size, 16) // size)
    sys.modules |= {"fallbacks": parent, "fallbacks.utils": utils}
    return importlib.import_module("fallbacks.utils.layout")


@pytest.fixture(scope="session")
def torchao():
    """Swizzles of torchao, in torch."""
    if find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocked = importlib.import_module("torchao.prototype.mx_formats.utils")
        groups = importlib.import_module("torchao.prototype.moe_training.kernels.mxfp8.quant")
    return SimpleNamespace(
        to_blocked=blocked.to_blocked,
        from_blocked=blocked.from_blocked,
        m_groups=groups.torch_to_blocked_2d_M_groups,
        k_groups=groups.torch_to_blocked_2d_K_groups,
        experts=groups.torch_to_blocked_per_group_3d,
    )
