"""Triton's own launcher takes what launches pass, up to where a driver would be needed."""

import pytest
import torch

from sshsdp_mxfp import (
    MXFP8,
    MXTensor,
    PackedLayout,
    QuantizeJob,
    ScaleSpan,
    ScaleWrite,
    Stochastic,
)
from sshsdp_mxfp.kernels import dequantize, quantize, relayout
from sshsdp_mxfp.layouts.write import CheckedWrite

triton = pytest.importorskip("triton")


class Driver:
    """What a launcher asks before it compiles."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _):
        return 0


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())


def prepared(direct):
    x = torch.empty(64, 256, device="cuda")
    q = MXTensor.empty(x.shape, MXFP8(), device="cuda")
    layout = PackedLayout(64, 8)
    grid = torch.empty(2, 8, dtype=torch.uint8, device="cuda")
    cells = torch.empty(layout.cells, dtype=torch.uint8, device="cuda")
    yield from quantize.prepare([QuantizeJob(x, q, None, Stochastic(1 << 63))], direct=direct)
    span = ScaleSpan(grid, layout, 0, layout.cells, cells, 32)
    yield from relayout.prepare_spans(span.parts(), direct=direct)
    write = CheckedWrite(ScaleWrite(grid, layout, layout.operand(cells), band=32))
    yield from relayout.prepare_writes([write], direct=direct)
    if direct:
        yield from dequantize.prepare(q, x)
        read = torch.empty(64, 8, dtype=torch.uint8, device="cuda")
        yield relayout.prepare_read(cells, layout, read, 1)


@pytest.mark.parametrize("direct", [False, True])
def test_arguments_are_bound_and_compiled(fake_cuda, driver, direct):
    for launch in prepared(direct):
        options = {"num_warps": launch.warps, "enable_fp_fusion": False}
        kernel = launch.kernel.run(
            **launch.arguments,
            **launch.constants,
            **options,
            grid=(launch.programs,),
            warmup=True,
        )
        assert ".target sm_90a" in kernel.asm["ptx"]
