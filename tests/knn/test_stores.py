"""Nearest neighbours: a matrix product of our own, held against FAISS and against differences in double precision."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch  # noqa: F401  (before FAISS)

import worlds
from pflcli.knn import exact
from pflcli.knn.exact import nearest
from pflcli.knn.flat_format import flat_indexes, flat_vectors
from pflcli.knn.stores import Stores


def points(n, d=7, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def brute(stored, queries, k):
    squared = ((queries[:, None].astype(np.float64) - stored[None]) ** 2).sum(axis=2)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(squared, order, axis=1), order


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (40, 10), (300, 7)])
def test_nearest_is_brute_force(n, k):
    stored, queries = points(n), points(23, seed=1)
    distance, row = nearest(stored, queries, k)
    expected, order = brute(stored, queries, k)
    np.testing.assert_array_equal(row, order)
    np.testing.assert_allclose(distance, expected, rtol=1e-5)


def test_distances_to_near_duplicates_keep_their_digits():
    # Far from the origin, |q|^2 - 2 q.x + |x|^2 has no digit left of a distance of 1e-4.
    stored = points(50, 64) + 100
    queries = stored[:9].copy()
    queries[:, 0] += 0.01
    distance, row = nearest(stored, queries, 3)
    expected, order = brute(stored, queries, 3)
    np.testing.assert_array_equal(row[:, 0], order[:, 0])
    np.testing.assert_allclose(distance[:, 0], expected[:, 0], rtol=1e-3)
    same, _ = nearest(stored, stored[:9], 1)
    assert (same == 0).all()


def test_ties_go_to_the_first_row():
    stored = np.repeat(points(3), 4, axis=0)
    _, row = nearest(stored, stored[[0, 8]], 6)
    assert row[0, :4].tolist() == [0, 1, 2, 3]
    assert row[1, :4].tolist() == [8, 9, 10, 11]
    assert set(row[0, 4:]) in ({4, 5}, {8, 9})


@pytest.mark.parametrize("onednn", [True, False])
def test_large_products_give_the_neighbours_that_faiss_does_wherever_vectors_lie(onednn, monkeypatch):
    import faiss

    monkeypatch.setattr(exact, "_ONEDNN", onednn and exact._ONEDNN)
    assert exact._LARGE < 700 * 43 * 300
    stored, queries = points(700, 300), points(43, 300, seed=1)
    index = faiss.IndexFlatL2(300)
    index.add(stored)
    expected, rows = index.search(queries, 9)
    distance, row = nearest(stored, queries, 9)
    np.testing.assert_array_equal(row, rows)
    np.testing.assert_allclose(distance, expected, rtol=1e-5)
    for offset in (1, 45, 64):
        moved = [np.zeros(part.nbytes + offset, np.uint8)[offset:].view("<f4") for part in (stored, queries)]
        for part, values in zip(moved, (stored, queries), strict=True):
            part[:] = values.ravel()
        elsewhere = nearest(moved[0].reshape(stored.shape), moved[1].reshape(queries.shape), 9)
        assert (elsewhere[0].tobytes(), elsewhere[1].tobytes()) == (distance.tobytes(), row.tobytes())


def test_a_store_that_is_copied_in_parts_has_the_same_neighbours(monkeypatch):
    stored, queries = points(50), np.concatenate([points(9, seed=1), points(50)[40:]])
    distance, row = nearest(stored, queries, 6)
    monkeypatch.setattr(exact, "_COPIED", 7 * 12)
    parts = nearest(stored, queries, 6)
    np.testing.assert_array_equal(parts[1], row)
    np.testing.assert_allclose(parts[0], distance, rtol=1e-5)


@pytest.mark.parametrize(("n", "m", "k"), [(3, 1, 1), (5, 40, 7), (30, 4000, 90), (6, 50, 50)])
def test_the_largest_values_are_those_of_a_stable_sort(n, m, k):
    draw = np.random.default_rng(0)
    values = draw.integers(-9, 9, size=(n, m)).astype(np.float32) * draw.choice([1e-30, 0.5, -0.0], size=(n, m))
    values = values.astype(np.float32)  # with ties, and zeros of both signs
    np.testing.assert_array_equal(exact._largest(values, k), np.argsort(-values, axis=1, kind="stable")[:, :k])


@pytest.mark.parametrize("n", [0, 1, 33])
def test_an_index_is_one_that_faiss_reads_and_writes(n):
    import faiss

    stored = points(n)
    index = faiss.IndexFlatL2(7)
    index.add(stored)
    blob, _ = flat_indexes([stored])
    assert blob.tobytes() == faiss.serialize_index(index).tobytes()
    np.testing.assert_array_equal(flat_vectors(blob), stored)
    read = faiss.deserialize_index(blob)
    assert (read.ntotal, read.d) == (n, 7)


@pytest.mark.parametrize("searched", [20, 30])
def test_other_indexes_are_searched_by_faiss_and_agree(searched):
    import faiss

    sizes, train = [30, 0, 12], np.asarray([searched, 0, 12])
    z = [points(n, seed=n) for n in sizes]
    other = []
    for part in z:
        index = faiss.index_factory(7, "HNSW32")
        index.add(part)
        other.append(faiss.serialize_index(index).tobytes())
    queries, bounds = points(15, seed=9), np.asarray([0, 6, 8, 15])
    results = []
    packed = np.frombuffer(bytearray().join(other), np.uint8), np.cumsum([0, *map(len, other)])
    for blob, ends in (flat_indexes(z), packed):
        labels, offsets = np.arange(sum(sizes)), np.cumsum([0, *sizes])
        for threads in (1, 3):
            stores = Stores(blob, ends, labels, offsets, train, threads)
            results.append(stores.search([0, 1, 2], queries, bounds, 14))
    for other_result in results[1:]:
        np.testing.assert_array_equal(results[0].label, other_result.label)
        np.testing.assert_allclose(results[0].distance, other_result.distance, rtol=1e-5)
    # The last client holds 12 samples, the middle one none.
    assert (results[0].label[8:, 12:] == -1).all()
    assert np.isinf(results[0].distance[6:8]).all()


@pytest.mark.parametrize("first", ["torch", "faiss"])
def test_either_order_of_import_leaves_both_working(first):
    code = f"""
import {first}
import torch, faiss, numpy as np
x = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
index = faiss.IndexFlatL2(64); index.add(x)
for _ in range(3):
    a = torch.from_numpy(x) @ torch.from_numpy(x).T
    d, i = index.search(x, 1)
assert (i[:, 0] == np.arange(500)).all() and torch.isfinite(a).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_search_of_many_clients_is_that_of_each():
    run = worlds.run()
    part = run.embeddings["test"]
    together = run.stores.search(run.clients, part.z, part.offsets, 3)
    for client in run.clients:
        alone = part.take(np.asarray([client]))
        actual = run.stores.search([client], alone.z, alone.offsets, 3)
        span = slice(part.offsets[client], part.offsets[client + 1])
        width = actual.label.shape[1]  # as many as the store has
        assert actual.distance.tobytes() == together.distance[span, :width].tobytes()
        np.testing.assert_array_equal(actual.label, together.label[span, :width])
        assert (together.label[span, width:] == -1).all()
