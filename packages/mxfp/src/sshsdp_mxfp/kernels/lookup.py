"""Jobs of batched kernels: rows of a table of 64-bit numbers.

Every job begins with the number of its first program, so that a program finds its job.
"""

# mypy: allow-untyped-decorators, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl


@triton.jit
def find_job(
    table: tl.tensor, jobs: tl.tensor, program: tl.tensor, fields: tl.constexpr
) -> tl.tensor:
    """The last job whose first program is not beyond `program`."""
    low = jobs * 0
    high = jobs
    while high - low > 1:
        middle = (low + high) // 2
        below = tl.load(table + middle.to(tl.int64) * fields) <= program
        low = tl.where(below, middle, low)
        high = tl.where(below, high, middle)
    return low


@triton.jit
def number(job: tl.tensor, field: tl.constexpr, aligned: tl.constexpr) -> tl.tensor:
    """A number out of a job; compilers may take it for a multiple of 16 if it's `aligned`."""
    result = tl.load(job + field)
    if aligned:
        result = tl.multiple_of(result, 16)
    return result


@triton.jit
def pointer(
    job: tl.tensor, field: tl.constexpr, kind: tl.constexpr, aligned: tl.constexpr
) -> tl.tensor:
    """An address out of a job, to be read as pointing to `kind`."""
    result = number(job, field, False).to(tl.pointer_type(kind))
    if aligned:
        result = tl.multiple_of(result, 16)
    return result
