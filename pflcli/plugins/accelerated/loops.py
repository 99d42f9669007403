"""Compiled loops for the layers of networks that are not matrix products.

PyTorch's kernels take several calls and passes over memory where one loop suffices. The innermost loops run along
memory, so that they become vector instructions. Loops of pooled convolutions compute one image at a time, whose maps
stay in the cache; they only store the largest value of each 2x2 pixels, and which pixel it is.
"""

from __future__ import annotations

import math

import numpy as np

from pflcli.plugins.accelerated.compiler import Array, compiled
from pflcli.plugins.accelerated.instructions import as_row, combination
from pflcli.plugins.accelerated.products import product

_ROWS_PER_SUM = 64
"""Rows of a partial sum. The rounding error of a sum of 8,192 float32 numbers is then that of a sum of about 128."""


@compiled
def patches(x: Array, size: int, stride: int, padding: int, out: Array) -> None:
    """Write into ``out`` (n, h', w', C size size) the patches that a convolution takes of images ``x`` (n, C, h, w)."""
    images, channels, height, width = x.shape
    for image in range(images):
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                patch, position = out[image, row, column], 0
                for c in range(channels):
                    for i in range(row * stride - padding, row * stride - padding + size):
                        for j in range(column * stride - padding, column * stride - padding + size):
                            inside = 0 <= i < height and 0 <= j < width
                            patch[position] = x[image, c, i, j] if inside else 0
                            position += 1


@compiled
def _transpose_taps(weight: Array) -> Array:
    """Return depthwise weights (C, 9) as (9, C)."""
    taps = np.empty((9, len(weight)), weight.dtype)
    for c in range(len(weight)):
        for tap in range(9):
            taps[tap, c] = weight[c, tap]
    return taps


@compiled
def depthwise(x: Array, weight: Array, stride: int, out: Array) -> None:
    """Write into ``out`` (n, h', w', C) the 3x3 convolution, with padding 1, of ``x`` (n, h, w, C) and (C, 9)."""
    images, height, width, channels = x.shape
    taps = _transpose_taps(weight)
    for image in range(images):
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                pixel = out[image, row, column]
                pixel[:] = 0
                for i in range(3):
                    above = row * stride + i - 1
                    if above < 0 or above >= height:
                        continue
                    for j in range(3):
                        left = column * stride + j - 1
                        if left < 0 or left >= width:
                            continue
                        neighbour, scale = x[image, above, left], taps[3 * i + j]
                        for c in range(channels):
                            pixel[c] += neighbour[c] * scale[c]


@compiled
def depthwise_backward(x: Array, weight: Array, grad: Array, stride: int, to_x: Array, to_weight: Array) -> None:
    """Write the gradients of ``depthwise`` into ``to_x`` and ``to_weight``; ``grad`` is that of its output."""
    images, height, width, channels = x.shape
    taps = _transpose_taps(weight)
    total, part = np.zeros_like(taps), np.empty_like(taps)
    for image in range(images):
        to_x[image] = 0
        part[:] = 0
        for row in range(grad.shape[1]):
            for column in range(grad.shape[2]):
                gradient = grad[image, row, column]
                for i in range(3):
                    above = row * stride + i - 1
                    if above < 0 or above >= height:
                        continue
                    for j in range(3):
                        left = column * stride + j - 1
                        if left < 0 or left >= width:
                            continue
                        neighbour, scale = x[image, above, left], taps[3 * i + j]
                        to_neighbour, to_tap = to_x[image, above, left], part[3 * i + j]
                        for c in range(channels):
                            to_neighbour[c] += gradient[c] * scale[c]
                            to_tap[c] += gradient[c] * neighbour[c]
        for tap in range(9):
            add(total[tap], part[tap])
    for c in range(channels):
        for tap in range(9):
            to_weight[c, tap] = total[tap, c]


@compiled
def add(to: Array, values: Array) -> None:
    """Add ``values`` to the first numbers of ``to``. Numba takes two seconds to compile ``+=`` for arrays."""
    for i in range(len(values)):
        to[i] += values[i]


@compiled
def _products(a: Array, b: Array) -> Array:
    """Return the elementwise product. Numba takes long to compile ``*`` for arrays, see ``add``."""
    result = np.empty_like(a)
    for i in range(len(a)):
        result[i] = a[i] * b[i]
    return result


@compiled
def normalize(x: Array, weight: Array, bias: Array, eps: float, cap: float, out: Array, stats: Array) -> None:
    """Write into ``out`` (m, C) the rows ``x`` normalized over the batch, scaled, and clipped to [0, cap] if cap > 0.

    Write into ``stats`` (3, C) the mean, 1 / sqrt(variance + eps), and the unbiased variance. See Ioffe & Szegedy
    (2015), https://arxiv.org/abs/1502.03167, Algorithm 1.
    """
    rows, channels = x.shape
    mean, rate, variance = stats[0], stats[1], stats[2]
    part = np.empty_like(mean)
    mean[:] = 0
    for first in range(0, rows, _ROWS_PER_SUM):
        part[:] = 0
        for row in range(first, min(first + _ROWS_PER_SUM, rows)):
            for c in range(channels):
                part[c] += x[row, c]
        add(mean, part)
    for c in range(channels):
        mean[c] /= rows
    variance[:] = 0
    for first in range(0, rows, _ROWS_PER_SUM):
        part[:] = 0
        for row in range(first, min(first + _ROWS_PER_SUM, rows)):
            for c in range(channels):
                part[c] += (x[row, c] - mean[c]) ** 2
        add(variance, part)
    for c in range(channels):
        rate[c] = 1 / np.sqrt(variance[c] / rows + eps)
        variance[c] /= rows - 1
    scale = _products(weight, rate)
    lower, upper = x.dtype.type(0), x.dtype.type(cap)
    for row in range(rows):
        for c in range(channels):
            # Compute the difference first: x scale - mean scale loses digits where the variance is small.
            value = (x[row, c] - mean[c]) * scale[c] + bias[c]
            out[row, c] = min(max(value, lower), upper) if cap > 0 else value


@compiled
def normalize_backward(
    x: Array, weight: Array, bias: Array, stats: Array, cap: float, grad: Array, to_weight: Array, to_bias: Array
) -> None:
    """Turn ``grad`` (m, C), the gradient by the output of ``normalize``, into that by ``x``; write the others."""
    rows, channels = x.shape
    mean, rate = stats[0], stats[1]
    scale = _products(weight, rate)
    lower, upper = x.dtype.type(0), x.dtype.type(cap)
    to_weight[:] = 0
    to_bias[:] = 0
    part = np.empty((2, channels), x.dtype)
    for first in range(0, rows, _ROWS_PER_SUM):
        part[:] = 0
        for row in range(first, min(first + _ROWS_PER_SUM, rows)):
            for c in range(channels):
                offset = x[row, c] - mean[c]
                value = offset * scale[c] + bias[c]
                step = grad[row, c] if cap <= 0 or (lower < value) & (value < upper) else lower
                grad[row, c] = step
                part[0, c] += step * offset
                part[1, c] += step
        add(to_weight, part[0])
        add(to_bias, part[1])
    # dx = scale (step - mean(step) - x^ mean(step x^)), where x^ = (x - mean) rate.
    slope, level = np.empty_like(scale), np.empty_like(scale)
    for c in range(channels):
        to_weight[c] *= rate[c]
    for c in range(channels):
        slope[c] = -scale[c] * rate[c] * to_weight[c] / rows
        level[c] = -scale[c] * to_bias[c] / rows
    for row in range(rows):
        for c in range(channels):
            grad[row, c] = scale[c] * grad[row, c] + slope[c] * (x[row, c] - mean[c]) + level[c]


@compiled
def cross_entropy(logits: Array, y: Array, weight: Array, scale: float, grad: Array) -> float:
    """Return the cross-entropy of ``logits`` (n, C), ``y`` (n,) weighted by ``weight`` (n,), and write its gradients.

    The gradients are multiplied by ``scale``. Sums are in double precision.
    """
    loss = 0.0
    for sample in range(len(logits)):
        row, by_row, own, true = logits[sample], grad[sample], weight[sample], int(y[sample])
        top, total = row[0], 0.0
        for j in range(1, len(row)):
            top = max(top, row[j])
        for j in range(len(row)):
            by_row[j] = math.exp(row[j] - top)
            total += by_row[j]
        loss += own * (math.log(total) + top - row[true])
        for j in range(len(row)):
            by_row[j] *= scale * own / total
        by_row[true] -= scale * own
    return loss


CROSS_ENTROPY, SQUARED, ABSOLUTE, HUBER, POISSON, QUANTILE = range(6)
"""The losses of ``mean_loss``."""


@compiled
def mean_loss(loss: int, levels: Array, outputs: Array, y: Array, weight: Array, scale: float, grad: Array) -> float:
    """Return the loss of ``outputs`` (n, C), ``y`` (n,) weighted by ``weight`` (n,), and write its gradients.

    But for cross-entropy, ``y`` are standardized labels, and ``levels`` (C,) are the quantiles that outputs predict.
    The gradients are multiplied by ``scale``. Sums are in double precision.
    """
    total, count = 0.0, outputs.shape[1]
    if loss == CROSS_ENTROPY:
        mean: float = cross_entropy(outputs, y, weight, scale, grad)
        return mean
    for sample in range(len(outputs)):
        for j in range(count):
            output = outputs[sample, j]
            error = output - y[sample]
            if loss == SQUARED:
                value, slope = error * error, 2 * error
            elif loss == ABSOLUTE:
                value, slope = abs(error), np.sign(error)
            elif loss == HUBER:
                near = min(max(error, -1.0), 1.0)
                value, slope = near * (error - near / 2), near
            elif loss == POISSON:
                expected = math.exp(output)
                value, slope = expected - y[sample] * output, expected - y[sample]
            else:
                slope = (1.0 if error > 0 else 0.0) - levels[j]
                value = error * slope
            total += weight[sample] * value / count
            grad[sample, j] = scale * weight[sample] * slope / count
    return total


@compiled
def pull(weights: Array, anchor: Array, part: float, drift: Array, rate: float) -> None:
    """Move weights by a part of the way to the anchor, and by minus the rate times the drift; both may be empty."""
    part, rate = weights.dtype.type(part), weights.dtype.type(rate)
    for i in range(len(anchor)):
        weights[i] += part * (anchor[i] - weights[i])
    for i in range(len(drift)):
        weights[i] -= rate * drift[i]


_copy_row = combination([[1]])


@compiled
def rectified_max(maps: Array, bias: Array, out: Array, codes: Array) -> None:
    """Write into ``out`` (m, O) the maximum of 0 and of the ``maps`` (4, m, O) plus the ``bias``; NaN stays NaN.

    Write into ``codes`` (m, O) the index of the map that is the maximum, or 4 for 0.
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
    """Write the gradients by ``maps`` (4, m, O), given those by the output, ``grad`` (m, O); add those by the bias."""
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
    """Write into ``out`` (C size size, 4, windows) the pixels of an image (C, h, w) for each tap of a convolution.

    The second axis are the four pixels of a pooling window. The padded image is written into ``planes`` (C, h', 2, w'),
    with even and odd columns separated, so that pixels at the same position of their windows are neighbours.
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
                    _copy_row(planes, line + 4 * i * half, 0, out, to + i * columns, 0, columns)


@compiled
def convolve_first(
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
def convolve_first_backward(
    x: Array,
    padding: int,
    windows: tuple[int, int],
    work: tuple[Array, Array, Array],
    grad: Array,
    codes: Array,
    to_weight: Array,
    to_bias: Array,
) -> None:
    """Write the gradients of ``convolve_first`` by weight (K, O) and bias, given ``grad`` (n, windows, O)."""
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
    """Write pixels (n, h w, C) into rows (n, C h w)."""
    images, pixels, channels = x.shape
    for image in range(images):
        for c in range(channels):
            for i in range(pixels):
                out[image, c * pixels + i] = x[image, i, c]


@compiled
def unflatten(grad: Array, to_x: Array) -> None:
    """Write rows (n, C h w) into pixels (n, h w, C)."""
    images, pixels, channels = to_x.shape
    for image in range(images):
        for i in range(pixels):
            for c in range(channels):
                to_x[image, i, c] = grad[image, c * pixels + i]


@compiled
def shift_and_rectify(sums: Array, bias: Array, rectify: bool) -> None:
    """Add the bias to the ``sums`` (n, O) in place, and apply ReLU if wanted; NaN stays NaN."""
    zero = sums.dtype.type(0)
    for i in range(len(sums)):
        for c in range(len(bias)):
            value = sums[i, c] + bias[c]
            sums[i, c] = zero if rectify and value < zero else value


@compiled
def shift_and_rectify_backward(out: Array, rectify: bool, grad: Array, to_bias: Array) -> None:
    """Turn ``grad`` (n, O), the gradient by ``out``, into that by its sums; write the gradient by the bias."""
    zero = grad.dtype.type(0)
    to_bias[:] = 0
    for i in range(len(grad)):
        for c in range(len(to_bias)):
            step = zero if rectify and out[i, c] <= zero else grad[i, c]
            grad[i, c] = step
            to_bias[c] += step
