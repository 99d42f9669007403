"""Exponentials, logarithms and random numbers of compiled loops: against NumPy, known answers and quantiles."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from pflcli.plugins.accelerated import elementary
from pflcli.plugins.accelerated.compiler import compiled

KEY = np.asarray([0xA4093822, 0x299F31D0], dtype=np.uint32)


@compiled
def exponentials(x, out):
    for i in range(len(x)):
        out[i] = elementary.exponential(x[i])


@compiled
def logarithms(x, out):
    for i in range(len(x)):
        out[i] = elementary.minus_log(x[i])


def draw_bits(count, first=0):
    numbers = np.empty((4, count), np.uint32)
    elementary.fill_bits(KEY, first, numbers)
    return numbers


def compute_philox(key, counter):
    """Ten rounds of Philox 4x32 in Python's integers."""
    a, b, c, d = counter
    for turn in range(10):
        low, high = 0xD2511F53 * a, 0xCD9E8D57 * c
        own = [(part + turn * weyl) % 2**32 for part, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        a, b, c, d = high >> 32 ^ b ^ own[0], high % 2**32, low >> 32 ^ d ^ own[1], low % 2**32
    return [a, b, c, d]


def assert_quantiles(draws, inverse):
    """The share of draws below a quantile is what it should be, within four standard deviations."""
    for p in (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999):
        assert abs((draws < inverse(p)).mean() - p) < 4 * math.sqrt(p * (1 - p) / len(draws))


def test_exponentials_and_logarithms_are_accurate_to_seven_digits():
    x = np.linspace(-86.9, 87.9, 100_001).astype(np.float32)
    actual = np.empty_like(x)
    exponentials(x, actual)
    np.testing.assert_allclose(actual, np.exp(x.astype(np.float64)), rtol=4e-7)
    ends = np.asarray([-1e30, -np.inf, np.nan, 0], np.float32)
    exponentials(ends, actual[:4])
    assert (actual[:2] < 1e-37).all()
    assert math.isnan(actual[2])
    assert actual[3] == 1

    x = np.concatenate([np.geomspace(1e-30, 1e30, 100_001), np.linspace(0.5, 1, 10_001)]).astype(np.float32)
    actual = np.empty_like(x)
    logarithms(x, actual)
    np.testing.assert_allclose(actual, -np.log(x.astype(np.float64)), rtol=3e-7, atol=3e-7)
    assert (actual[x <= 1] >= 0).all()  # a root of it is taken


def test_random_bits_equal_philox():
    zero = np.empty((4, 1), np.uint32)
    elementary.fill_bits(np.zeros(2, np.uint32), 0, zero)
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # as its authors give them
    assert zero[:, 0].tolist() == known == compute_philox([0, 0], [0, 0, 0, 0])
    first = 2**32 - 2  # the counter passes to its second word
    for j, column in enumerate(draw_bits(5, first).T.tolist()):
        assert column == compute_philox(KEY.tolist(), [(first + j) % 2**32, (first + j) >> 32, 0, 0])


def test_normal_and_exponential_draws_have_their_distributions():
    numbers = draw_bits(200_000)
    one, other, exponential = np.empty((3, 200_000), np.float32)
    elementary.fill_normal(numbers[0], numbers[1], one, other)
    elementary.fill_exponential(numbers[2], exponential)
    for normal in (one, other, (one + other) / math.sqrt(2), (one - other) / math.sqrt(2)):
        assert_quantiles(normal, NormalDist().inv_cdf)
    assert_quantiles(one**2 + other**2, lambda p: -2 * math.log1p(-p))
    assert_quantiles(exponential, lambda p: -math.log1p(-p))
    ends = np.asarray([0, 2**32 - 1], np.uint32)
    elementary.fill_exponential(ends, exponential[:2])
    np.testing.assert_allclose(exponential[:2], [33 * math.log(2), 0], atol=1e-5)
