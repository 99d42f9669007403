"""Exponentials, logarithms and random numbers of 32 bits that compiled loops compute for vectors.

The functions of the C library take one number at a time. These are polynomials, which LLVM inlines.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pflcli.plugins.accelerated.compiler import Array, compiled, inlined

_F, _I, _U, _WIDE = np.float32, np.int32, np.uint32, np.uint64
_HALF, _ONE, _TWO = _F(0.5), _F(1), _F(2)

_LOWEST, _HIGHEST = _F(-87), _F(88)
_PER_LOG2, _LOG2_HIGH, _LOG2_LOW = _F(1 / math.log(2)), _F(0.693359375), _F(math.log(2) - 0.693359375)
_E2, _E3, _E4, _E5, _E6, _E7 = (_F(1 / math.factorial(k)) for k in range(2, 8))
_BIAS, _MANTISSA, _BITS = _I(127), _I(0x7FFFFF), _I(23)

_ROOT_HALF = _F(math.sqrt(0.5))
_L1, _L3, _L5, _L7, _L9 = (_F(2 / k) for k in (1, 3, 5, 7, 9))

_QUARTER = _F(math.pi / 2 / 2**30)
_S3, _S5, _S7 = _F(-1 / 6), _F(1 / 120), _F(-1 / 5040)
_C2, _C4, _C6, _C8 = _F(-1 / 2), _F(1 / 24), _F(-1 / 720), _F(1 / 40320)
_STEP = _F(2.0**-32)

_PHILOX0, _PHILOX1, _WEYL0, _WEYL1 = _WIDE(0xD2511F53), _WIDE(0xCD9E8D57), _U(0x9E3779B9), _U(0xBB67AE85)
_SHIFT, _NONE = _WIDE(32), _U(0)


@inlined
def exponential(x: Any) -> Any:
    """Return e^x with a relative error of at most 3e-7. Clip x to [-87, 88]; return NaN for NaN."""
    x = x if math.isnan(x) else min(max(x, _LOWEST), _HIGHEST)
    power = _F(math.floor(x * _PER_LOG2 + _HALF))
    r = x - power * _LOG2_HIGH - power * _LOG2_LOW
    tail = ((((_E7 * r + _E6) * r + _E5) * r + _E4) * r + _E3) * r + _E2
    return ((tail * r + _ONE) * r + _ONE) * _I((_I(power) + _BIAS) << _BITS).view(_F)


@inlined
def minus_log(x: Any) -> Any:
    """Return -log x of a normal number x > 0 with an absolute or relative error of at most 2e-7."""
    bits = _F(x).view(_I)
    power = _F((bits >> _BITS) - _BIAS)
    m = _I((bits & _MANTISSA) | (_BIAS << _BITS)).view(_F) * _HALF  # from 1/2 to 1
    is_small = m < _ROOT_HALF
    m = m + m if is_small else m
    power = power if is_small else power + _ONE
    s = (m - _ONE) / (m + _ONE)
    square = s * s
    series = (((_L9 * square + _L7) * square + _L5) * square + _L3) * square
    return -(power * (_LOG2_HIGH + _LOG2_LOW) + (s * series + s * _L1))


@compiled
def fill_bits(key: Array, first: int, bits: Array) -> None:
    """Write random numbers of 32 bits into ``bits`` (4, n) by Philox 4x32-10, Salmon et al. (2011).

    Column j is the output for ``key`` (2,) and the counter ``first`` + j.
    """
    for j in range(bits.shape[1]):
        counter = _WIDE(first + j)
        a, b, c, d = _U(counter), _U(counter >> _SHIFT), _NONE, _NONE
        own0, own1 = _U(key[0]), _U(key[1])
        for _ in range(10):
            low, high = _PHILOX0 * _WIDE(a), _PHILOX1 * _WIDE(c)
            a, b, c, d = _U(high >> _SHIFT) ^ b ^ own0, _U(high), _U(low >> _SHIFT) ^ d ^ own1, _U(low)
            own0, own1 = _U(own0 + _WEYL0), _U(own1 + _WEYL1)
        bits[0, j], bits[1, j], bits[2, j], bits[3, j] = a, b, c, d


@compiled
def fill_normal(first: Array, second: Array, one: Array, other: Array) -> None:
    """Write pairs of normal numbers by Box & Muller (1958), each from 32 random bits in both arrays."""
    for i in range(len(first)):
        radius = math.sqrt(_TWO * minus_log((_F(first[i]) + _HALF) * _STEP))
        # Two bits choose a quarter of the circle, the others an angle in it, from -pi/4 to pi/4.
        angle = (_F(second[i] >> _U(2)) - _F(2.0**29)) * _QUARTER
        square = angle * angle
        sine = angle + angle * square * ((_S7 * square + _S5) * square + _S3)
        cosine = _ONE + square * (((_C8 * square + _C6) * square + _C4) * square + _C2)
        cosine = -cosine if second[i] & _U(1) else cosine
        is_turned = (second[i] & _U(2)) != _NONE
        one[i] = radius * (sine if is_turned else cosine)
        other[i] = radius * (cosine if is_turned else sine)


@compiled
def fill_exponential(bits: Array, out: Array) -> None:
    """Write exponential numbers with mean 1, each from 32 random bits."""
    for i in range(len(bits)):
        out[i] = minus_log((_F(bits[i]) + _HALF) * _STEP)
