"""Elimination of many small systems side by side, against loops in double precision."""

import numpy as np
import pytest

from pflcli.plugins.accelerated import instructions
from pflcli.plugins.accelerated.compiler import compiled


@compiled
def subtract(count, a, b, c, rows, width, step):
    """Rows of ``c`` (rows, width) less products of those of ``a`` (rows, count, width) and ``b`` (count + 1, width)."""
    first, last = (0, 0) if step > 0 else ((count - 1) * width, count * width)
    own = step * width
    instructions.minus_products(count, a, first, count * width, own, b, last, own, c, 0, width, rows, width)


@compiled
def solve(count, a, b, c, rows, width, step):
    first, last = (0, 0) if step > 0 else ((count - 1) * width, count * width)
    own = step * width
    instructions.solve(count, a, first, count * width, own, b, last, own, c, 0, width, rows, width)


@pytest.mark.parametrize("width", [1, 7, 16, 20, 32, 33, 70])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("step", [1, -1])
def test_subtract_and_solve_match_numpy_lane_by_lane(width, rows, count, step):
    draw = np.random.default_rng(width)
    a, b, c = (
        draw.normal(size=shape).astype(np.float32)
        for shape in ((rows, count, width), (count + 1, width), (rows, width))
    )
    left, right = a[:, ::step].astype(np.float64), b[::step].astype(np.float64)
    expected = c - (left * right[:count]).sum(axis=1)
    behind = np.full(5, np.float32(7))
    for function, factor in ((subtract, 1), (solve, right[count])):
        out = np.concatenate([c.ravel(), behind])
        function(count, a.ravel(), b.ravel(), out, rows, width, step)
        np.testing.assert_allclose(out[:-5].reshape(rows, width), expected * factor, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(out[-5:], behind)


@compiled
def multiply(factor, a, b, c, width):
    instructions.products(factor, a, 1, b, 2, c, 3, width)


@pytest.mark.parametrize("width", [0, 1, 16, 20, 37])
def test_products_match_numpy_lane_by_lane(width):
    draw = np.random.default_rng(width)
    a, b, c = draw.normal(size=(3, width + 5)).astype(np.float32)
    expected = np.concatenate([c[:3], 0.5 * a[1 : width + 1] * b[2 : width + 2], c[width + 3 :]])
    multiply(np.float32(0.5), a, b, c, width)
    np.testing.assert_array_equal(c, expected)
