"""CUDA tensors without CUDA, and code for GPUs that aren't there."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sshsdp_mxfp.kernels import dequantize, launch, quantize, relayout

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int64: "*i64",
}


@pytest.fixture
def fake_cuda(monkeypatch):
    """Tensors have a device, a shape and strides, but no memory; addresses are multiples of 16."""
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda _: 4096)
    for module in (quantize, dequantize):
        monkeypatch.setattr(module, "converts", lambda device: device.type == "cuda")
    for module in (quantize, relayout):
        monkeypatch.setattr(
            module, "table", lambda rows, _: torch.empty(len(rows), dtype=torch.int64)
        )
    with FakeTensorMode():
        yield


@pytest.fixture
def launched(fake_cuda, monkeypatch):
    """Launches are listed in place of being run."""
    found = []
    monkeypatch.setattr(launch.Launch, "run", lambda self, **_: found.append(self))
    return found


@dataclass(frozen=True)
class Code:
    """PTX, and what ptxas made of it."""

    ptx: str
    registers: int
    stack: int
    local: int
    accesses: Counter

    def count(self, prefix):
        return sum(n for name, n in self.accesses.items() if name.startswith(prefix))


@pytest.fixture
def compiled(fake_cuda, tmp_path, monkeypatch):
    """Compiles the only one of some launches for an architecture."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))

    def compile_for(launches, architecture):
        (only,) = launches
        return _compile(only, architecture, tmp_path)

    return compile_for


def _compile(given, architecture, folder):
    import triton
    from triton.backends.compiler import GPUTarget

    options = {"num_warps": given.warps, "enable_fp_fusion": False}
    result = triton.compile(_source(given), GPUTarget("cuda", architecture, 32), options)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(result.asm["cubin"])
    usage = _run("cuobjdump", "-res-usage", cubin)
    numbers = {name: int(n) for name, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    accesses = re.findall(r"\b((?:LD|ST)[GLS]\b\w*(?:\.\w+)*)", _run("nvdisasm", cubin))
    return Code(
        result.asm["ptx"], numbers["REG"], numbers["STACK"], numbers["LOCAL"], Counter(accesses)
    )


def _source(given):
    """As Triton specializes it: addresses are multiples of 16, and so are numbers that are."""
    from triton.compiler import ASTSource

    # The interpreter ignores names that a kernel doesn't have.
    assert {*given.arguments, *given.constants} == set(given.kernel.arg_names)
    signature, constants, attributes = {}, dict(given.constants), {}
    fixed = {parameter.name for parameter in given.kernel.params if parameter.do_not_specialize}
    for place, name in enumerate(given.kernel.arg_names):
        value = given.arguments.get(name)
        special = name not in fixed
        if name in constants or (special and isinstance(value, int) and value == 1):
            signature[name] = "constexpr"
            constants.setdefault(name, value)
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name] = "i32" if value < 1 << 31 else "i64"
            special = special and value % 16 == 0
        if special:
            attributes[place,] = [["tt.divisibility", 16]]
    return ASTSource(given.kernel, signature, constants, attributes)


def _run(tool, *arguments):
    from triton.backends import nvidia

    command = [Path(nvidia.__file__).parent / "bin" / tool, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
