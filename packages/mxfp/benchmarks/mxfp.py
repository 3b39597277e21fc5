"""Quantization on one core, in multiples of a plain copy that moves the same bytes.

Everything alternates in one process; the copy reads and writes half of the bytes each. torchao's
eager cast joins where it is installed: 1x32 as it is, 32x32 on blocks that were made rows before.
"""

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from testing.bench_program import Program
from testing.bench_rank import Rank
from testing.bench_row import Row, summary
from testing.bench_samples import Samples

from sshsdp_mxfp import MXFP8, MXTensor, dequantize, quantize

SIDE, GOAL, BAR = "sshsdp", 8.0, 10.0
BLOCKS = {"32x32": (32, 32), "1x32": (1, 32)}
QUICK, SIZE = 1024, 4096


def programs(*, quick: bool) -> Sequence[Program]:
    """float32 to E4M3 in both blocks; `quick`: a small matrix, twice."""
    size, repeats = (QUICK, 2) if quick else (SIZE, 15)
    rounds = 1 if quick else 3
    return [
        Program(
            SIDE,
            f"{size}x{size} float32/{block}",
            "cpu",
            arguments={"size": size, "block": block, "repeats": repeats},
            rounds=rounds,
        )
        for block in BLOCKS
    ]


def cpu(_: Rank, size: int, block: str, repeats: int) -> Mapping[str, Sequence[float]]:
    """Seconds of the process, per repeat and side."""
    x = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    fmt = MXFP8(BLOCKS[block])
    out = MXTensor.empty(x.shape, fmt)
    quantize(x, fmt, out=out)
    source = torch.ones((x.nbytes + out.nbytes) // 2, dtype=torch.uint8)
    target, values = torch.empty_like(source), torch.empty_like(x)
    sides: dict[str, Callable[[], object]] = {
        "memcpy": lambda: target.copy_(source),
        "quantize": lambda: quantize(x, fmt, out=out),
        "dequantize": lambda: dequantize(out, out=values),
    }
    if importlib.util.find_spec("torchao") is not None:
        sides["torchao"] = _torchao(x, block)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats + 1):
        for name, run in sides.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: values[1:] for name, values in seconds.items()}


def _torchao(x: torch.Tensor, block: str) -> Callable[[], object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
    size, mode = x.shape[0], ScaleCalculationMode.RCEIL
    if block == "1x32":
        return lambda: to_mx(x, torch.float8_e4m3fn, 32, mode)
    rows = x.view(size // 32, 32, size // 32, 32).transpose(1, 2).reshape(-1, 1024)
    return lambda: to_mx(rows, torch.float8_e4m3fn, 1024, mode)


def rows(samples: Samples) -> list[Row]:
    """Best times of each round against each other, then medians; a hard bar is a row of its own."""
    result: list[Row] = []
    for size in (QUICK, SIZE):
        for block in BLOCKS:
            workload = f"{size}x{size} float32/{block}"
            if samples.has(workload, SIDE):
                best = [
                    {name: min(times) for name, times in run.ranks[0].items()}
                    for run in samples.runs(workload, SIDE)
                ]
                result += _rows(workload, best)
    return result


def _rows(workload: str, best: Sequence[Mapping[str, float]]) -> list[Row]:
    result = [
        _row(f"quantize_per_memcpy/{workload}", best, "quantize", "memcpy", GOAL),
        _row(f"quantize_per_memcpy/{workload}/bar", best, "quantize", "memcpy", BAR),
        _row(f"dequantize_per_memcpy/{workload}", best, "dequantize", "memcpy", None),
    ]
    if "torchao" in best[0]:
        name = f"quantize_per_torchao/{workload}"
        result.append(_row(name, best, "quantize", "torchao", 1.0))
    return result


def _row(
    name: str,
    best: Sequence[Mapping[str, float]],
    above: str,
    below: str,
    goal: float | None,
) -> Row:
    ratios = [times[above] / times[below] for times in best]
    details = {above: [times[above] for times in best], "rounds": summary(ratios)}
    return Row(name, statistics.median(ratios), "x", goal, "lower", details)
