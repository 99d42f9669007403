"""Compiled loops for 5x5 convolutions that ReLU and 2x2 max pooling follow, by Winograd's minimal filtering.

F(2x2, 5x5) of Lavin & Gray (2016), https://arxiv.org/abs/1509.09308, section 4, with the points 0, 1, -1, 2, -2 and
infinity. Each tile of 2x2 outputs takes 36 multiplications instead of 100, and is one window of the pooling. Images go
one by one, so that their tiles stay in the cache. With d (6, 6) the pixels of a tile, g (5, 5) the weights, and * per
element, the outputs (2, 2) are A' [(G g G') * (B' d B)] A.
"""

from __future__ import annotations

from pflcli.engine.cpu.compiler import compiled
from pflcli.engine.cpu.kernels import Array
from pflcli.engine.cpu.pooled import rectified_max, rectified_max_backward
from pflcli.engine.cpu.products import product
from pflcli.engine.cpu.vectors import apart, combination

_POINTS = (0, 1, -1, 2, -2)
_SCALES = (4, -6, -6, 24, 24)
"""Of each point, the product of its differences to the others."""

_A = [[1, point] for point in _POINTS] + [[0, 1]]
_G = [[point**power / scale for power in range(5)] for point, scale in zip(_POINTS, _SCALES, strict=True)]
_G += [[0, 0, 0, 0, 1]]
_B = [
    [4, 0, 0, 0, 0, 0],
    [0, -4, 4, -2, 2, 4],
    [-5, -4, -4, -1, -1, 0],
    [0, 1, -1, 2, -2, -5],
    [1, 1, 1, 1, 1, 0],
    [0, 0, 0, 0, 0, 1],
]
_A_TURNED, _B_TURNED, _G_TURNED = ([*zip(*matrix, strict=True)] for matrix in (_A, _B, _G))

_copy = combination([[1]])
_to_tile, _add_tile = combination(_B_TURNED), combination(_B, adds=True)
_to_weight, _from_weight = combination(_G), combination(_G_TURNED)
_to_maps, _from_maps = combination(_A_TURNED), combination(_A)


Windows = tuple[int, int]
"""How many tiles an image has, in rows and columns."""

Work = tuple[Array, Array, Array, Array, Array]
"""Memory for one image: padded pixels (h', w', C), lines (6 w' C) or (12 O), tiles (36, m, C), sums (36, m, O), and
maps (4, m, O), where m is the number of tiles; of tiles and sums there may be more than that."""


@compiled
def filters(weight: Array, taps: Array, lines: Array, out: Array, turned: Array) -> None:
    """Write the transformed ``weight`` (O, C, 25) into ``out`` (36, C, O) and ``turned`` (36, O, C).

    ``taps`` (25, C, O) and ``lines`` (30, C, O) are memory to work in.
    """
    outputs, inputs, _ = weight.shape
    plane = inputs * outputs
    for c in range(inputs):
        for k in range(25):
            for o in range(outputs):
                taps[k, c, o] = weight[o, c, k]
    for j in range(5):
        _to_weight(taps, j * plane, 5 * plane, lines, j * plane, 5 * plane, plane)
    for i in range(6):
        _to_weight(lines, 5 * i * plane, plane, out, 6 * i * plane, plane, plane)
    for k in range(36):
        for o in range(outputs):
            for c in range(inputs):
                turned[k, o, c] = out[k, c, o]


@compiled
def filters_backward(grad: Array, taps: Array, lines: Array, to_weight: Array) -> None:
    """Write into ``to_weight`` (O, C, 25) the gradients for ``grad`` (36, C, O), that of the transformed weights."""
    outputs, inputs, _ = to_weight.shape
    plane = inputs * outputs
    for j in range(6):
        _from_weight(grad, j * plane, 6 * plane, lines, j * plane, 6 * plane, plane)
    for i in range(5):
        _from_weight(lines, 6 * i * plane, plane, taps, 5 * i * plane, plane, plane)
    for c in range(inputs):
        for o in range(outputs):
            for k in range(25):
                to_weight[o, c, k] = taps[k, c, o]


@compiled
def _tiles(x: Array, padding: int, windows: Windows, padded: Array, lines: Array, tiles: Array) -> None:
    """Write into ``tiles`` (36, m, C) the transformed tiles B' d B of an image (h, w, C)."""
    apart()
    height, width, channels = x.shape
    wide = padded.shape[1] * channels
    padded[:] = 0
    within = min(width, padded.shape[1] - padding) * channels
    for i in range(min(height, padded.shape[0] - padding)):
        _copy(x, i * width * channels, 0, padded, (i + padding) * wide + padding * channels, 0, within)
    rows, columns = windows
    plane = tiles.shape[1] * channels
    for i in range(rows):
        for j in range(padded.shape[1]):
            _to_tile(padded, 2 * i * wide + j * channels, wide, lines, j * channels, wide, channels)
        for j in range(columns):
            tile = (i * columns + j) * channels
            for r in range(6):
                _to_tile(lines, r * wide + 2 * j * channels, channels, tiles, 6 * r * plane + tile, plane, channels)


@compiled
def _from_tiles(tiles: Array, padding: int, windows: Windows, padded: Array, lines: Array, to_x: Array) -> None:
    """Write into ``to_x`` (h, w, C) the gradient of an image for that of its transformed tiles (36, m, C)."""
    apart()
    height, width, channels = to_x.shape
    wide = padded.shape[1] * channels
    rows, columns = windows
    plane = tiles.shape[1] * channels
    padded[:] = 0
    for i in range(rows):
        lines[: 6 * wide] = 0
        for j in range(columns):
            tile = (i * columns + j) * channels
            for r in range(6):
                _add_tile(tiles, 6 * r * plane + tile, plane, lines, r * wide + 2 * j * channels, channels, channels)
        for j in range(padded.shape[1]):
            _add_tile(lines, j * channels, wide, padded, 2 * i * wide + j * channels, wide, channels)
    to_x[:] = 0
    within = min(width, padded.shape[1] - padding) * channels
    for i in range(min(height, padded.shape[0] - padding)):
        _copy(padded, (i + padding) * wide + padding * channels, 0, to_x, i * width * channels, 0, within)


@compiled
def convolve(
    x: Array, weight: Array, bias: Array, padding: int, windows: Windows, work: Work, out: Array, codes: Array
) -> None:
    """Write into ``out`` (n, m, O) the pooled convolution of ``x`` (n, h, w, C) with transformed weights (36, C, O)."""
    padded, lines, tiles, sums, maps = work
    inputs, outputs, count = x.shape[3], len(bias), windows[0] * windows[1]
    x_plane, plane, map_plane = tiles.shape[1] * inputs, sums.shape[1] * outputs, count * outputs
    for image in range(len(x)):
        _tiles(x[image], padding, windows, padded, lines, tiles)
        for k in range(36):
            from_x, from_weight, to = k * x_plane, k * inputs * outputs, k * plane
            shape = (count, outputs, inputs)
            product(shape, tiles, from_x, inputs, 1, weight, from_weight, outputs, sums, to, outputs, 0)
        for tile in range(0, map_plane, outputs):
            for j in range(6):
                _to_maps(sums, j * plane + tile, 6 * plane, lines, j * outputs, 6 * outputs, outputs)
            for i in range(2):
                _to_maps(lines, 6 * i * outputs, outputs, maps, 2 * i * map_plane + tile, map_plane, outputs)
        rectified_max(maps, bias, out[image], codes[image])


@compiled
def convolve_backward(
    x: Array,
    turned: Array,
    padding: int,
    windows: Windows,
    work: Work,
    grad: Array,
    codes: Array,
    to_x: Array,
    to_weight: Array,
    to_bias: Array,
) -> None:
    """Write the gradients by ``x``, transformed weights (36, C, O) and bias for ``grad`` (n, m, O), that of the output.

    ``turned`` are the transformed weights (36, O, C).
    """
    padded, lines, tiles, sums, maps = work
    inputs, outputs, count = x.shape[3], len(to_bias), windows[0] * windows[1]
    x_plane, plane, map_plane = tiles.shape[1] * inputs, sums.shape[1] * outputs, count * outputs
    to_bias[:] = 0
    for image in range(len(x)):
        _tiles(x[image], padding, windows, padded, lines, tiles)
        rectified_max_backward(grad[image], codes[image], maps, to_bias)
        for tile in range(0, map_plane, outputs):
            for j in range(2):
                _from_maps(maps, j * map_plane + tile, 2 * map_plane, lines, j * outputs, 2 * outputs, outputs)
            for i in range(6):
                _from_maps(lines, 2 * i * outputs, outputs, sums, 6 * i * plane + tile, plane, outputs)
        for k in range(36):
            at_x, at_weight, at_sum = k * x_plane, k * inputs * outputs, k * plane
            shape = (inputs, outputs, count)
            more = min(image, 1)
            product(shape, tiles, at_x, 1, inputs, sums, at_sum, outputs, to_weight, at_weight, outputs, more)
            shape = (count, inputs, outputs)  # the tiles are not needed any more
            product(shape, sums, at_sum, outputs, 1, turned, at_weight, inputs, tiles, at_x, inputs, 0)
        _from_tiles(tiles, padding, windows, padded, lines, to_x[image])
