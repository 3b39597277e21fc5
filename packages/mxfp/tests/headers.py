"""NVIDIA's conversion functions, from the headers of CUDA, compiled for the host."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = r"""
#include <cstdint>
#include <cuda_fp8.h>
#include <cuda_fp6.h>
#include <cuda_fp4.h>

extern "C" void scales(const float *x, uint8_t *y, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        y[i] = __nv_cvt_float_to_e8m0(x[i], __NV_SATFINITE, cudaRoundPosInf);
}

extern "C" void elements(const float *x, uint8_t *y, int64_t n, int kind) {
    for (int64_t i = 0; i < n; ++i) {
        if (kind == 0) y[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3);
        if (kind == 1) y[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2);
        if (kind == 2) y[i] = __nv_cvt_float_to_fp6(x[i], __NV_E2M3, cudaRoundNearest);
        if (kind == 3) y[i] = __nv_cvt_float_to_fp6(x[i], __NV_E3M2, cudaRoundNearest);
        if (kind == 4) y[i] = __nv_cvt_float_to_fp4(x[i], __NV_E2M1, cudaRoundNearest);
    }
}
"""
KINDS = {"e4m3": 0, "e5m2": 1, "e2m3": 2, "e3m2": 3, "e2m1": 4}


class Unavailable(Exception):  # noqa: N818
    """Why the functions can't be compiled here."""


def include_folder() -> Path:
    """The folder with CUDA's headers, where a toolkit is installed."""
    compiler = shutil.which("nvcc")
    roots = [
        *(Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)),
        *([Path(compiler).resolve().parents[1]] if compiler else []),
        Path("/usr/local/cuda"),
    ]
    for root in roots:
        if (root / "include" / "cuda_fp4.h").is_file():
            return root / "include"
    raise Unavailable("needs the headers of CUDA 12.8 or later (cuda_fp4.h); set CUDA_HOME")


class Headers:
    """The functions on tensors."""

    def __init__(self, folder: Path):
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise Unavailable("needs g++ or clang++")
        source, library = folder / "oracle.cpp", folder / "oracle.so"
        source.write_text(SOURCE)
        flags = ["-O1", "-w", "-std=c++17", "-shared", "-fPIC", f"-I{include_folder()}"]
        command = [compiler, *flags, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"the headers don't compile here: {done.stderr.strip()[-300:]}")
        self._library = ctypes.CDLL(str(library))

    def scales(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(self._library.scales, x)

    def elements(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self._call(self._library.elements, x, ctypes.c_int(KINDS[name]))

    def _call(self, function, x: torch.Tensor, *more) -> torch.Tensor:
        x = x.float().contiguous()
        y = torch.empty(x.shape, dtype=torch.uint8)
        pointers = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
        function(*pointers, ctypes.c_int64(x.numel()), *more)
        return y
