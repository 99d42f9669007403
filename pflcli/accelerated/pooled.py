"""Compiled loops for the layers of a CNN, one image at a time: ReLU and 2x2 max pooling, the first convolution.

The maps of an image stay in the cache. Kept is only the largest value of each 2x2 pixels, and its place among them.
"""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array
from pflcli.accelerated.products import product
from pflcli.accelerated.vectors import as_row, combination

_copy = combination([[1]])


@compiled
def rectified_max(maps: Array, bias: Array, out: Array, codes: Array) -> None:
    """Write into ``out`` (m, O) the largest of 0 and the ``maps`` (4, m, O) plus the ``bias``; NaN stays NaN.

    ``codes`` (m, O) receives which map it is, or 4 for 0.
    """
    zero = maps.dtype.type(0)
    for i in range(len(out)):
        m0, m1, m2, m3, to, code = maps[0, i], maps[1, i], maps[2, i], maps[3, i], out[i], codes[i]
        for c in range(len(bias)):
            best, place = m0[c], np.int32(0)
            better = (m1[c] > best) | np.isnan(m1[c])
            best, place = m1[c] if better else best, np.int32(1) if better else place
            better = (m2[c] > best) | np.isnan(m2[c])
            best, place = m2[c] if better else best, np.int32(2) if better else place
            better = (m3[c] > best) | np.isnan(m3[c])
            best, place = m3[c] if better else best, np.int32(3) if better else place
            best += bias[c]
            better = (best > zero) | np.isnan(best)
            to[c] = best if better else zero
            code[c] = place if better else np.int32(4)


@compiled
def rectified_max_backward(grad: Array, codes: Array, maps: Array, to_bias: Array) -> None:
    """Write the gradients by ``maps`` (4, m, O) for those of the output, ``grad`` (m, O); add those by the bias."""
    zero = maps.dtype.type(0)
    for i in range(len(grad)):
        value, code = grad[i], codes[i]
        for pixel in range(4):
            to = maps[pixel, i]
            for c in range(len(to_bias)):
                to[c] = value[c] if code[c] == pixel else zero
        for c in range(len(to_bias)):
            to_bias[c] += value[c] if code[c] < 4 else zero


@compiled
def _patches(x: Array, size: int, padding: int, windows: tuple[int, int], planes: Array, out: Array) -> None:
    """Write into ``out`` (C size size, 4, windows) what each tap of a convolution meets of an image (C, h, w).

    The second axis are the four pixels of a pooling window. ``planes`` (C, h', 2, w') receives the padded image, its
    even columns apart from its odd ones, so that pixels at the same place of their windows are neighbours.
    """
    channels, height, width = x.shape
    rows, columns = windows
    high, half = planes.shape[1], planes.shape[3]
    planes[:] = 0
    for c in range(channels):
        for i in range(max(0, padding), min(high, height + padding)):
            for j in range(padding, min(2 * half, width + padding)):
                planes[c, i, j % 2, j // 2] = x[c, i - padding, j - padding]
        for tap in range(size * size):
            for pixel in range(4):
                across = pixel % 2 + tap % size
                line = ((c * high + pixel // 2 + tap // size) * 2 + across % 2) * half + across // 2
                to = ((c * size * size + tap) * 4 + pixel) * rows * columns
                for i in range(rows):
                    _copy(planes, line + 4 * i * half, 0, out, to + i * columns, 0, columns)


@compiled
def first(
    x: Array,
    weight: Array,
    bias: Array,
    padding: int,
    windows: tuple[int, int],
    work: tuple[Array, Array, Array],
    out: Array,
    codes: Array,
) -> None:
    """Write into ``out`` (n, windows, O) the pooled convolution of ``x`` (n, C, h, w) with square ``weight`` (K, O)."""
    planes, patches, maps = work
    size = int(np.sqrt(len(weight) // x.shape[1]))
    pixels, outputs = 4 * out.shape[1], len(bias)
    patch_row, weight_row, map_row = as_row(patches), as_row(weight), as_row(maps)
    for image in range(len(x)):
        _patches(x[image], size, padding, windows, planes, patches)
        product((pixels, outputs, len(weight)), patch_row, 0, 1, pixels, weight_row, 0, outputs, map_row, 0, outputs, 0)
        rectified_max(maps, bias, out[image], codes[image])


@compiled
def first_backward(
    x: Array,
    padding: int,
    windows: tuple[int, int],
    work: tuple[Array, Array, Array],
    grad: Array,
    codes: Array,
    to_weight: Array,
    to_bias: Array,
) -> None:
    """Write the gradients by weight (K, O) and bias of ``first`` for ``grad`` (n, windows, O), that of its output."""
    planes, patches, maps = work
    size = int(np.sqrt(len(to_weight) // x.shape[1]))
    pixels, outputs = 4 * grad.shape[1], len(to_bias)
    patch_row, map_row, to_row = as_row(patches), as_row(maps), as_row(to_weight)
    to_bias[:] = 0
    for image in range(len(x)):
        _patches(x[image], size, padding, windows, planes, patches)
        rectified_max_backward(grad[image], codes[image], maps, to_bias)
        shape = (len(to_weight), outputs, pixels)
        product(shape, patch_row, 0, pixels, 1, map_row, 0, outputs, to_row, 0, outputs, min(image, 1))


@compiled
def flatten(x: Array, out: Array) -> None:
    """Write pixels (n, h w, C) as rows (n, C h w)."""
    images, pixels, channels = x.shape
    for image in range(images):
        for c in range(channels):
            for i in range(pixels):
                out[image, c * pixels + i] = x[image, i, c]


@compiled
def unflatten(grad: Array, to_x: Array) -> None:
    """Write rows (n, C h w) as pixels (n, h w, C)."""
    images, pixels, channels = to_x.shape
    for image in range(images):
        for i in range(pixels):
            for c in range(channels):
                to_x[image, i, c] = grad[image, c * pixels + i]


@compiled
def shift_and_rectify(sums: Array, bias: Array, rectify: bool) -> None:
    """Add the bias to the ``sums`` (n, O), and if wanted let them be no less than 0; NaN stays NaN."""
    zero = sums.dtype.type(0)
    for i in range(len(sums)):
        for c in range(len(bias)):
            value = sums[i, c] + bias[c]
            sums[i, c] = zero if rectify and value < zero else value


@compiled
def shift_and_rectify_backward(out: Array, rectify: bool, grad: Array, to_bias: Array) -> None:
    """Turn ``grad`` (n, O) of ``out`` into that of its sums; write that of the bias."""
    zero = grad.dtype.type(0)
    to_bias[:] = 0
    for i in range(len(grad)):
        for c in range(len(to_bias)):
            step = zero if rectify and out[i, c] <= zero else grad[i, c]
            grad[i, c] = step
            to_bias[c] += step
