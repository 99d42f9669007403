"""Matrix products on one thread: those of MKL, or of compiled loops where MKL does not use the best instructions.

On an AMD EPYC with AVX-512 the loops are 2.4 to 2.7 times as fast as MKL, which keeps to AVX2 there. The choice follows
from the CPU, never from timing: the same machine gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import llvmlite.binding
import torch
from torch import Tensor

from pflcli.engine.cpu.compiler import compiled
from pflcli.engine.cpu.kernels import Array
from pflcli.engine.cpu.memory import Step
from pflcli.engine.cpu.vectors import PAIR, ROWS, WIDE, apart, combination, tile

_CPU: str = llvmlite.binding.get_host_cpu_name()
"""What LLVM calls this CPU: ``znver`` and a number is one of AMD's."""

OWN = WIDE and _CPU.startswith("znver")
"""Whether matrix products are compiled loops instead of MKL's."""

WHY = (
    f"matrix products in compiled loops, as MKL does not use AVX-512 on {_CPU}" if OWN else "matrix products by PyTorch"
)
"""The choice in words, for users."""

_PANEL, _FAR, _DEEP = 128, 1024, 64
"""Columns of a panel; the distance of rows in numbers, and the number of rows, from which it pays to copy them."""

_copy = combination([[1]])
_R0, _R1, _R2, _R3, _R4 = ROWS
_tile0, _tile1, _tile2, _tile3, _tile4 = (tile(rows) for rows in ROWS)


@compiled
def product(
    size: tuple[int, int, int],
    a: Array,
    a0: int,
    a_row: int,
    a_inner: int,
    b: Array,
    b0: int,
    b_row: int,
    c: Array,
    c0: int,
    c_row: int,
    more: int,
) -> None:
    """Write the product of a matrix (m, k) in ``a`` and one (k, n) in ``b`` into ``c``, or add it if ``more`` is 1.

    ``size`` is m, n and k. The first element of the matrix in ``a`` is a[a0]; its rows are ``a_row`` numbers apart, and
    its columns ``a_inner``. The rows of the others are ``b_row`` and ``c_row`` numbers apart.
    """
    apart()
    m, n, k = size
    step = PAIR // c.itemsize
    for j in range(0, n, step):
        width = min(step, n - j)
        i = 0
        while i < m:
            from_a, from_b, to_c, left = a0 + i * a_row, b0 + j, c0 + i * c_row + j, m - i
            if left >= _R0:
                _tile0(k, a, from_a, a_row, a_inner, b, from_b, b_row, c, to_c, c_row, width, more)
                i += _R0
            elif left >= _R1:
                _tile1(k, a, from_a, a_row, a_inner, b, from_b, b_row, c, to_c, c_row, width, more)
                i += _R1
            elif left >= _R2:
                _tile2(k, a, from_a, a_row, a_inner, b, from_b, b_row, c, to_c, c_row, width, more)
                i += _R2
            elif left >= _R3:
                _tile3(k, a, from_a, a_row, a_inner, b, from_b, b_row, c, to_c, c_row, width, more)
                i += _R3
            else:
                _tile4(k, a, from_a, a_row, a_inner, b, from_b, b_row, c, to_c, c_row, width, more)
                i += _R4


@compiled
def packed_product(
    size: tuple[int, int, int],
    a: Array,
    strides: tuple[int, int],
    b: Array,
    b_row: int,
    c: Array,
    c_row: int,
    more: int,
    panel: Array,
) -> None:
    """Do as ``product`` with matrices that begin at 0, ``_PANEL`` columns of ``b`` after the other.

    They are copied to the ``panel`` (k _PANEL), where rows are neighbours. Rows far apart would lie on a page each and,
    a power of two apart, in the same places of the cache.
    """
    m, n, k = size
    for j in range(0, n, _PANEL):
        width = min(_PANEL, n - j)
        for i in range(k):
            _copy(b, i * b_row + j, 0, panel, i * _PANEL, 0, width)
        product((m, width, k), a, 0, strides[0], strides[1], panel, 0, _PANEL, c, j, c_row, more)


def multiply(a: Tensor, b: Tensor, out: Tensor, adds: bool = False) -> Step:
    """Return the function that writes the product of ``a`` (m, k) and ``b`` (k, n) into ``out``, or adds it.

    The numbers of a row of ``b``, and of ``out``, must be neighbours.
    """
    if not OWN:
        return partial(out.addmm_, a, b) if adds else partial(torch.mm, a, b, out=out)
    (m, k), n = a.shape, b.shape[1]
    from_a, from_b, to = (value.as_strided((_extent(value),), (1,)).numpy() for value in (a, b, out))
    if b.stride(0) >= _FAR and k >= _DEEP:
        panel = torch.empty(k * _PANEL, dtype=b.dtype).numpy()
        arguments = (m, n, k), from_a, a.stride(), from_b, b.stride(0), to, out.stride(0), int(adds), panel
        return partial(packed_product, *arguments)
    sizes = (m, n, k), from_a, 0, a.stride(0), a.stride(1), from_b, 0, b.stride(0), to, 0, out.stride(0), int(adds)
    return partial(product, *sizes)


def multiply_by_rows(x: Tensor, weight: Tensor, out: Tensor, new: Callable[..., Tensor]) -> list[Step]:
    """Return the functions that write the product of ``x`` (m, k) and a turned ``weight`` (n, k) into ``out`` (m, n).

    ``new`` allocates memory of a shape.
    """
    if not OWN:
        return [partial(torch.mm, x, weight.t(), out=out)]
    if len(x) > len(weight):
        turned = new(*weight.t().shape)
        return [partial(turned.copy_, weight.t()), multiply(x, turned, out)]
    # The large matrix is read as it lies; the others are turned.
    turned, sums = new(*x.t().shape), new(*out.t().shape)
    return [partial(turned.copy_, x.t()), multiply(weight, turned, sums), partial(out.copy_, sums.t())]


def _extent(matrix: Tensor) -> int:
    """Return how many numbers lie from the first to the last of a matrix in memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(matrix.shape, matrix.stride(), strict=True))
