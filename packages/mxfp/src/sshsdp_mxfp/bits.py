"""The arithmetic of the formats, on integers: the one definition for every device.

Bits in, bits out. The functions use nothing but ``+ - & | ~ << >>`` between integer tensors and
plain integers, which mean the same for ``torch.Tensor`` and for ``triton.language.tensor``: there
is no comparison, no selection, no dtype and no call of either library. A condition is a number
whose bits are all ones or all zeros: ``(a - b) >> 31`` is all ones exactly where a < b.

On torch tensors they are called as they stand. In a Triton kernel the *same source* runs: copy the
functions into a scope where they find each other compiled, callees first,

    scope = {"__name__": bits.__name__, "tl": triton.language, "Tensor": triton.language.tensor}
    for name in ("smaller", "scale_code", "multiplier_bits", "encode"):
        code = getattr(bits, name).__code__
        scope[name] = triton.jit(types.FunctionType(code, scope, name))

and call ``encode = scope["encode"]`` from kernels, with the numbers of the format as
``tl.constexpr``. A test does so, runs the result in Triton's interpreter and compiles it for GPUs.
Casts that give the same bits (torch's on CPUs, ``cvt`` on GPUs) may stand in for `encode`.

Notation: floats are given by their bits as int32. `exponent_bits`, `mantissa_bits` and
`largest_code` are those of an `Element`; codes of elements include the sign, codes of scales are
0..255 and stand for 2^(code - 127), 255 for NaN.
"""

from torch import Tensor


def smaller(a: Tensor, b: int, top: int) -> Tensor:
    """min(a, b), for numbers whose difference doesn't overflow; `top` is the place of the sign."""
    return b + ((a - b) & ((a - b) >> top))


def scale_code(
    amax: Tensor, addend: int, largest_exponent: int, mantissa_bits: int, exponent_bits: int
) -> Tensor:
    """Codes of scales from block maxima.

    A rule is the number that is added to a maximum before its exponent is read; it carries into the
    exponent where the rule rounds up (`sshsdp_mxfp.scales.addend`).

    Args:
        amax: bits of floats without sign, in integers of their width; as integers they have the
            same order, with NaN above infinity.
        addend: the rule.
        largest_exponent: of the element format.
        mantissa_bits: of amax: 23 for float32, 52 for float64.
        exponent_bits: of amax: 8 for float32, 11 for float64.

    Returns:
        Integers of the same width: 255 for NaN, 254 for infinity, else 0..254; 0 for zero and for
        all that would need a scale below 2^-127.
    """
    top = mantissa_bits + exponent_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    special = (infinity - 1 - amax) >> top
    nan = (infinity - amax) >> top
    offset = largest_exponent + (1 << (exponent_bits - 1)) - 128
    code = (((amax & ~special) + addend) >> mantissa_bits) - offset
    code = smaller(code & ~(code >> top), 254, top)
    return (code & ~special) | (special & 254) | (nan & 1)


def multiplier_bits(code: Tensor) -> Tensor:
    """float32 bits of 2^(127 - code), by which elements are multiplied before they are rounded.

    Exact for codes 0..254. For 255 some finite number: the elements are NaN whatever they were.
    """
    subnormal = (253 - code) >> 31
    return (((254 - code) << 23) & ~subnormal) | (subnormal & 0x00400000)


def value_bits(code: Tensor) -> Tensor:
    """float32 bits of what a scale code stands for: 2^(code - 127), NaN for 255."""
    zero_or_nan = ((code - 1) >> 31) | ((254 - code) >> 31)
    return (code << 23) | (zero_or_nan & 0x00400000)


def encode(bits: Tensor, exponent_bits: int, mantissa_bits: int, largest_code: int) -> Tensor:
    """Codes of floats, rounded to nearest, ties to even; magnitudes that are too large saturate.

    Args:
        bits: float32 bits of scaled elements, int32. Infinities and NaN saturate: blocks of NaN are
            overwritten by the caller.
        exponent_bits: of the element format.
        mantissa_bits: of the element format.
        largest_code: of the element format.

    Returns:
        int32 codes, sign included.
    """
    excess = ((bits & 0x7FFFFFFF) >> 23) - (129 - (1 << (exponent_bits - 1)))
    subnormal = excess >> 31
    # A subnormal of float32 gets a hidden bit that it hasn't; all its bits are dropped anyway.
    significand = (bits & 0x007FFFFF) | 0x00800000
    drop = smaller(23 - mantissa_bits - (excess & subnormal), 25, 31)
    odd = (significand >> drop) & 1
    rounded = (significand + (1 << (drop - 1)) - 1 + odd) >> drop
    code = rounded + ((excess & ~subnormal) << mantissa_bits)
    sign = (bits >> 31) & (1 << (exponent_bits + mantissa_bits))
    return smaller(code, largest_code, 31) | sign


def encode_stochastic(
    bits: Tensor, random: Tensor, exponent_bits: int, mantissa_bits: int, largest_code: int
) -> Tensor:
    """Codes of floats, rounded up in magnitude with the probability of the part that is dropped.

    The expectation is the float itself, for magnitudes up to the largest value: exactly if at most
    30 bits are dropped (in E4M3 of magnitudes from 2^-10 of the smallest normal value up), else
    within 2^-30 of the smallest value. What the format can represent stays as it is.

    Args:
        bits: as of `encode`.
        random: int32, of which the lower 30 bits must be uniform.
        exponent_bits: as of `encode`.
        mantissa_bits: as of `encode`.
        largest_code: as of `encode`.

    Returns:
        int32 codes, sign included.
    """
    excess = ((bits & 0x7FFFFFFF) >> 23) - (129 - (1 << (exponent_bits - 1)))
    subnormal = excess >> 31
    significand = (bits & 0x007FFFFF) | 0x00800000
    drop = 23 - mantissa_bits - (excess & subnormal)
    beyond = drop - smaller(drop, 30, 31)
    significand = significand >> smaller(beyond, 24, 31)
    drop = drop - beyond
    rounded = (significand + (random & ((1 << drop) - 1))) >> drop
    code = rounded + ((excess & ~subnormal) << mantissa_bits)
    sign = (bits >> 31) & (1 << (exponent_bits + mantissa_bits))
    return smaller(code, largest_code, 31) | sign


def decode_bits(code: Tensor, exponent_bits: int, mantissa_bits: int, largest_code: int) -> Tensor:
    """float32 bits of what element codes stand for; infinities and NaN where a format has them.

    Args:
        code: int32, sign included.
        exponent_bits: of the element format.
        mantissa_bits: of the element format, at most 3.
        largest_code: of the element format.
    """
    magnitude = code & ((1 << (exponent_bits + mantissa_bits)) - 1)
    mantissa = magnitude & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    normal = (magnitude + ((127 - bias) << mantissa_bits)) << (23 - mantissa_bits)
    # The leading one of a subnormal, found by counting; its place becomes the exponent.
    place = (((1 - mantissa) >> 31) & 1) + (((3 - mantissa) >> 31) & 1)
    tiny = ((128 - bias - mantissa_bits + place) << 23) | ((mantissa << (23 - place)) & 0x007FFFFF)
    tiny = tiny & ((0 - mantissa) >> 31)
    subnormal = (magnitude - (1 << mantissa_bits)) >> 31
    special = (largest_code - magnitude) >> 31
    finite = (normal & ~subnormal) | (tiny & subnormal)
    beyond = 0x7F800000 | (mantissa << (23 - mantissa_bits))
    sign = (code >> (exponent_bits + mantissa_bits)) << 31
    return (finite & ~special) | (beyond & special) | sign
