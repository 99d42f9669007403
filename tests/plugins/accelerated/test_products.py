"""The compiled products of matrices are those of NumPy in double precision, at every size and place."""

import numba
import numpy as np
import pytest
import torch

from pflcli.plugins.accelerated import instructions, products
from pflcli.plugins.accelerated.compiler import compiled

SHAPES = [
    *((m, n, k) for m in (1, 2, 5, 7, 13) for n in (1, 4, 6, 10) for k in (1, 7, 16, 37)),
    (3, 5, 1025),
    (10, 9, 2100),
    (49, 130, 1100),
]
"""Sizes below, at and above those of tiles, vectors and blocks."""


def make_matrix(draw, rows, columns, gap, dtype):
    """Return memory whose rows are ``gap`` numbers longer than the matrix, and begin after two numbers."""
    memory = draw.standard_normal(2 + rows * (columns + gap)).astype(dtype)
    return memory, memory[2:].reshape(rows, -1)[:, :columns]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["product", "product_by_rows"])
def test_products_of_any_size_match_double_precision(kind, dtype):
    draw = np.random.default_rng(0)
    for m, n, k in SHAPES:
        a, a_rows = make_matrix(draw, m, k, 3, dtype)
        b, b_rows = make_matrix(draw, *((n, k) if kind == "product_by_rows" else (k, n)), 1, dtype)
        c, _ = make_matrix(draw, m, n, 2, dtype)
        expected = a_rows.astype(float) @ (b_rows.T if kind == "product_by_rows" else b_rows).astype(float)
        for more in (0, 1):
            before = c.astype(float)
            strides = (k + 3,) if kind == "product_by_rows" else (k + 3, 1)
            to_b = b_rows.strides[0] // b.itemsize
            getattr(products, kind)((m, n, k), a, 2, *strides, b, 2, to_b, c, 2, n + 2, more)
            after = before.copy()
            after[2:].reshape(m, -1)[:, :n] *= more
            after[2:].reshape(m, -1)[:, :n] += expected  # and nothing else changes
            assert np.abs(c - after).max() <= 4 * (k + 8) * np.finfo(dtype).eps, (m, n, k, more)


def test_row_of_a_product_does_not_depend_on_other_rows():
    """So a stack gives the bytes of its clients one by one, whatever the sizes of instructions."""
    draw = np.random.default_rng(1)
    a, b, c = (draw.standard_normal(shape, dtype=np.float32) for shape in ((25, 1500), (31, 1500), (25, 31)))
    products.product_by_rows((25, 31, 1500), a.ravel(), 0, 1500, b.ravel(), 0, 1500, c.ravel(), 0, 31, 0)
    for i in (0, 11, 24):
        row = np.empty(31, np.float32)
        products.product_by_rows((1, 31, 1500), a[i], 0, 1500, b.ravel(), 0, 1500, row, 0, 31, 0)
        assert row.tobytes() == c[i].tobytes()


def test_dot_tile_keeps_the_order_of_sums(monkeypatch, tmp_path):
    """On CPUs without AVX-512 a row's last bits depended on others, as LLVM added up in the order it liked."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    dots = instructions.dot_tile(3)

    @compiled
    def multiply(a, b, c):
        dots(20, a, 0, 20, b, 0, 20, c, 0, 4, 3, 4, 1)

    a, b, c = (np.ones(size, np.float32) for size in (60, 80, 12))
    multiply(a, b, c)
    assert (c == 21).all()
    (text,) = multiply.inspect_llvm().values()
    sums = [line for line in text.splitlines() if " fadd " in line]
    assert len(sums) > 3
    assert not [line for line in sums if "reassoc" in line]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_packed_products_match_double_precision(dtype):
    draw = np.random.default_rng(3)
    for m, n, k in [*SHAPES, (30, 70, 64), (15, 333, 129)]:
        a, c = draw.standard_normal((m, k)).astype(dtype), draw.standard_normal((m, n + 2)).astype(dtype)
        b, b_rows = make_matrix(draw, k, n, 1, dtype)
        expected = a.astype(float) @ b_rows.astype(float)
        for more in (0, 1):
            after = c.astype(float)
            after[:, :n] = after[:, :n] * more + expected
            products.packed_product((m, n, k), a.ravel(), (k, 1), b[2:], n + 1, c.reshape(-1), n + 2, more)
            assert np.abs(c - after).max() <= 4 * (k + 8) * np.finfo(dtype).eps, (m, n, k, more)


def test_row_of_a_packed_product_does_not_depend_on_other_rows():
    draw = np.random.default_rng(4)
    a, b, c = (draw.standard_normal(shape, dtype=np.float32) for shape in ((25, 150), (150, 275), (25, 275)))
    products.packed_product((25, 275, 150), a.ravel(), (150, 1), b.ravel(), 275, c.reshape(-1), 275, 0)
    for i in (0, 11, 24):
        row = np.empty(275, np.float32)
        products.packed_product((1, 275, 150), a[i], (150, 1), b.ravel(), 275, row, 275, 0)
        assert row.tobytes() == c[i].tobytes()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("m", [3, 50])
def test_multiply_by_rows_matches_torch_for_few_and_many_samples(monkeypatch, own, m):
    monkeypatch.setattr(products, "COMPILED", own)
    x, weight, out = torch.randn(m, 40), torch.randn(9, 40), torch.empty(m, 9)
    for step in products.multiply_by_rows(x, weight, out, torch.empty):
        step()
    torch.testing.assert_close(out, x @ weight.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transpose_writes_only_inside_the_matrix(dtype):
    draw = np.random.default_rng(2)
    for rows, columns in ((1, 1), (16, 16), (17, 3), (5, 40), (33, 31)):
        x, values = make_matrix(draw, rows, columns, 3, dtype)
        y, _ = make_matrix(draw, columns, rows, 1, dtype)
        expected = y.copy()
        expected[2:].reshape(columns, -1)[:, :rows] = values.T
        products.transpose(x, 2, columns + 3, y, 2, rows + 1, rows, columns)
        assert np.array_equal(y, expected)


@pytest.mark.parametrize("fused", [True, False])
def test_fma_is_used_only_when_the_cpu_has_it(fused, monkeypatch):
    """Machines that emulate an old CPU lack the instruction; a function per number took 30 times as long."""
    monkeypatch.setattr(instructions, "HAS_FMA", fused)
    combine = instructions.combination([[1, 3]])

    @numba.njit
    def combined(x, y):
        combine(x, 0, 5, y, 0, 5, 5)

    x, y = np.arange(10.0), np.empty(5)
    combined(x, y)
    np.testing.assert_allclose(y, x[:5] + 3 * x[5:])
    (code,) = combined.inspect_llvm().values()
    assert ("llvm.fma" in code) == fused


def test_prefetch_is_compiled_and_changes_nothing():
    def ask(x, place):
        instructions.prefetch(x, place)

    x, compiled = np.arange(4.0, dtype=np.float32), numba.njit(ask)
    compiled(x, 10**9)  # no place is a fault
    assert x.tolist() == [0, 1, 2, 3]
    assert "prefetch" in compiled.inspect_asm(compiled.signatures[0])
