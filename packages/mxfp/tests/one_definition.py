"""Runs the arithmetic in Triton's interpreter, or compiles it: ``one_definition.py [ARCH ...]``.

A program of its own, because Triton reads TRITON_INTERPRET where functions are decorated.
"""

import sys
import types

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sshsdp_mxfp import E2M1, E2M3, E3M2, E4M3, E5M2, MXFP4, MXFP6, MXFP8, Stochastic, bits, scales
from sshsdp_mxfp.geometry import Rectangle

ELEMENTS = [E4M3, E5M2, E2M3, E3M2, E2M1]
KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}
NAMES = [
    "smaller",  # what others call comes first
    "scale_code",
    "multiplier_bits",
    "value_bits",
    "encode",
    "encode_stochastic",
    "decode_bits",
]
SIZE = 4096


def compiled():
    """The functions of `bits`, from their own source."""
    scope = {"__name__": bits.__name__, "tl": tl, "Tensor": tl.tensor}
    for name in NAMES:
        code = getattr(bits, name).__code__
        scope[name] = triton.jit(types.FunctionType(code, scope, name))
    return scope


SCOPE = compiled()
scale_code, multiplier_bits = SCOPE["scale_code"], SCOPE["multiplier_bits"]
value_bits, decode_bits = SCOPE["value_bits"], SCOPE["decode_bits"]
encode, encode_stochastic = SCOPE["encode"], SCOPE["encode_stochastic"]


@triton.jit
def kernel(
    x,
    amax,
    random,
    out,
    addend: tl.constexpr,
    top: tl.constexpr,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    largest: tl.constexpr,
    size: tl.constexpr,
):
    place = tl.program_id(0) * size + tl.arange(0, size)
    code = scale_code(tl.load(amax + place), addend, top, 23, 8)
    multiplier = multiplier_bits(code).to(tl.float32, bitcast=True)
    scaled = (tl.load(x + place) * multiplier).to(tl.int32, bitcast=True)
    nearest = encode(scaled, exponent_bits, mantissa_bits, largest)
    noisy = encode_stochastic(
        scaled, tl.load(random + place), exponent_bits, mantissa_bits, largest
    )
    step = tl.num_programs(0) * size
    tl.store(out + place, code)
    tl.store(out + step + place, value_bits(code))
    tl.store(out + 2 * step + place, nearest)
    tl.store(out + 3 * step + place, noisy)
    tl.store(out + 4 * step + place, decode_bits(nearest, exponent_bits, mantissa_bits, largest))


@triton.jit
def numbers(out, seed, parameter, ordinal, groups: tl.constexpr):
    column = tl.arange(0, groups)
    row = column * 0 + tl.program_id(0)
    c2, c3 = (row * 0 + parameter).to(tl.uint32), (row * 0 + ordinal).to(tl.uint32)
    a, b, c, d = tl.philox(seed, column, row, c2, c3)
    place = out + (tl.program_id(0) * groups + column) * 4
    tl.store(place, a.to(tl.int32, bitcast=True))
    tl.store(place + 1, b.to(tl.int32, bitcast=True))
    tl.store(place + 2, c.to(tl.int32, bitcast=True))
    tl.store(place + 3, d.to(tl.int32, bitcast=True))


def on_torch(x, amax, random, addend, top, *shape):
    """What `kernel` computes."""
    code = bits.scale_code(amax, addend, top, 23, 8)
    scaled = (x * bits.multiplier_bits(code).view(torch.float32)).view(torch.int32)
    nearest = bits.encode(scaled, *shape)
    noisy = bits.encode_stochastic(scaled, random, *shape)
    decoded = bits.decode_bits(nearest, *shape)
    return torch.cat([code, bits.value_bits(code), nearest, noisy, decoded])


def numbers_of(element, rule):
    """The constants of a format, as both take them."""
    fmt = KINDS[element](element=element, rule=rule)
    shape = element.exponent_bits, element.mantissa_bits, element.largest_code
    return scales.addend(fmt, 23), element.largest_exponent, *shape


def interpret():
    generator = torch.Generator().manual_seed(0)
    any_bits = torch.randint(-(1 << 31), 1 << 31, (3, SIZE), generator=generator).to(torch.int32)
    edges = torch.tensor([0, 1, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FFFFFFF, 0x00400000])
    amax, pattern, random = (row.contiguous() for row in any_bits)
    amax &= 0x7FFFFFFF
    amax[:7] = edges.to(torch.int32)
    # Half of the elements are near their maxima, the other half anything; NaN has no value to keep.
    near = amax[1::2] - (pattern[1::2] & 0x07FFFFFF)
    pattern[1::2] = torch.where(near > 0, near, pattern[1::2])
    x = pattern.view(torch.float32).nan_to_num(1.0)
    for element in ELEMENTS:
        for rule in ("rceil", "floor", "ceil", "even"):
            constants = numbers_of(element, rule)
            out = torch.empty(5 * SIZE, dtype=torch.int32)
            kernel[(4,)](x, amax, random, out, *constants, SIZE // 4)
            assert torch.equal(out, on_torch(x, amax, random, *constants)), (element, rule)
    rounding = Stochastic(0x123456789ABCDEF, parameter=7, ordinal=(1 << 32) - 1)
    out = torch.empty(3, 64, dtype=torch.int32)
    numbers[(3,)](out, rounding.seed, rounding.parameter, rounding.ordinal, 16)
    assert torch.equal(out, rounding.numbers(Rectangle(0, 3, 0, 64)).to(torch.int32))


def compile_for(arch):
    for element in ELEMENTS:
        values = (*numbers_of(element, "rceil"), 1024)
        names = kernel.arg_names[4:]
        signature = {"x": "*fp32", "amax": "*i32", "random": "*i32", "out": "*i32"}
        source = ASTSource(
            fn=kernel,
            signature=signature | dict.fromkeys(names, "constexpr"),
            constexprs=dict(zip(names, values, strict=True)),
        )
        result = triton.compile(source, target=GPUTarget("cuda", arch, 32))
        assert f".target sm_{arch}a" in result.asm["ptx"]
        assert "local" not in result.asm["ptx"]


if __name__ == "__main__":
    for arch in map(int, sys.argv[1:]):
        compile_for(arch)
    if not sys.argv[1:]:
        interpret()
    print("done")
