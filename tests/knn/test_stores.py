"""Nearest neighbours by FAISS and by products of matrices, compared with differences in double precision."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch  # noqa: F401  (before FAISS)

import worlds
from pflcli.core.knn import indexes
from pflcli.core.knn.indexes import build, find_nearest, flat_indexes, flat_vectors, search
from pflcli.core.knn.stores import Stores, select_client


def make_points(n, d=7, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def search_by_brute_force(stored, queries, k):
    squared = ((queries[:, None].astype(np.float64) - stored[None]) ** 2).sum(axis=2)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(squared, order, axis=1), order


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (40, 10), (300, 7)])
def test_find_nearest_equals_brute_force(n, k):
    stored, queries = make_points(n), make_points(23, seed=1)
    distance, row = find_nearest(stored, queries, k)
    expected, order = search_by_brute_force(stored, queries, k)
    np.testing.assert_array_equal(row, order)
    np.testing.assert_allclose(distance, expected, rtol=1e-5)


def test_find_nearest_is_accurate_for_near_duplicates():
    # Far from the origin, |q|^2 - 2 q.x + |x|^2 has no digit left of a distance of 1e-4.
    stored = make_points(50, 64) + 100
    queries = stored[:9].copy()
    queries[:, 0] += 0.01
    distance, row = find_nearest(stored, queries, 3)
    expected, order = search_by_brute_force(stored, queries, 3)
    np.testing.assert_array_equal(row[:, 0], order[:, 0])
    np.testing.assert_allclose(distance[:, 0], expected[:, 0], rtol=1e-3)
    same, _ = find_nearest(stored, stored[:9], 1)
    assert (same == 0).all()


def test_find_nearest_breaks_ties_by_row():
    stored = np.repeat(make_points(3), 4, axis=0)
    _, row = find_nearest(stored, stored[[0, 8]], 6)
    assert row[0, :4].tolist() == [0, 1, 2, 3]
    assert row[1, :4].tolist() == [8, 9, 10, 11]
    assert set(row[0, 4:]) in ({4, 5}, {8, 9})


def test_find_nearest_gives_equal_vectors_equal_distances():
    """Products compute the last few columns by other instructions."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        n, m, d = (int(draw.integers(1, most)) for most in (40, 300, 300))
        stored = np.repeat(draw.normal(size=(1, d)), m, axis=0).astype(np.float32)
        distance, row = find_nearest(stored, draw.normal(size=(n, d)).astype(np.float32), m)
        np.testing.assert_array_equal(row, np.tile(np.arange(m), (n, 1)))
        np.testing.assert_array_equal(distance, np.tile(distance[:, :1], m))


@pytest.mark.parametrize("n_queries", [1, 19, 43, 700])
def test_find_nearest_gives_a_query_the_same_result_alone_and_in_a_batch(n_queries):
    stored, queries = make_points(700, 300), make_points(n_queries, 300, seed=1)
    distance, row = find_nearest(stored, queries, 9)
    alone = find_nearest(stored, queries[-1:], 9)
    assert (alone[0].tobytes(), alone[1].tobytes()) == (distance[-1:].tobytes(), row[-1:].tobytes())


@pytest.mark.parametrize("n", [0, 1, 33])
def test_flat_indexes_are_bytes_that_faiss_reads_and_writes(n):
    import faiss

    stored = make_points(n)
    index = faiss.IndexFlatL2(7)
    index.add(stored)
    blob, _ = flat_indexes([stored])
    assert blob.tobytes() == faiss.serialize_index(index).tobytes()
    np.testing.assert_array_equal(flat_vectors(blob), stored)
    read = faiss.deserialize_index(blob)
    assert (read.ntotal, read.d) == (n, 7)


def test_search_of_hnsw_indexes_agrees_with_flat_ones():
    import faiss

    sizes = [30, 0, 12]
    z = [make_points(n, seed=n) for n in sizes]
    other = []
    for part in z:
        index = faiss.index_factory(7, "HNSW32")
        index.add(part)
        other.append(faiss.serialize_index(index).tobytes())
    queries, bounds = make_points(15, seed=9), np.asarray([0, 6, 8, 15])
    results = []
    packed = np.frombuffer(bytearray().join(other), np.uint8), np.cumsum([0, *map(len, other)])
    for blob, ends in (flat_indexes(z), packed):
        labels, offsets = np.arange(sum(sizes)), np.cumsum([0, *sizes])
        for threads in (1, 3):
            stores = Stores(blob, ends, labels, offsets, threads)
            results.append(stores.search([0, 1, 2], queries, bounds, 14))
    for other_result in results[1:]:
        np.testing.assert_array_equal(results[0].label, other_result.label)
        np.testing.assert_allclose(results[0].distance, other_result.distance, rtol=1e-5)
    # The last client holds 12 samples, the middle one none.
    assert (results[0].label[8:, 12:] == -1).all()
    assert np.isinf(results[0].distance[6:8]).all()


@pytest.mark.parametrize("first", ["torch", "faiss"])
def test_torch_and_faiss_work_in_either_import_order(first):
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


def test_search_of_many_clients_equals_each_client_alone():
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


def make_stores(sizes, n_queries, d):
    z = [make_points(n, d, seed=i) for i, n in enumerate(sizes)]
    blob, ends = flat_indexes(z)
    offsets, bounds = np.cumsum([0, *sizes]), np.cumsum([0, *n_queries])
    return z, make_points(bounds[-1], d, seed=99), bounds, [blob, ends, np.arange(sum(sizes)), offsets]


@pytest.fixture(params=["FAISS", "products"])
def search_form(request, monkeypatch):
    """Search stores of every size by FAISS, or by products, which large stores use, of few queries each."""
    monkeypatch.setattr(indexes, "_LARGE", 0 if request.param == "products" else 1 << 40)
    monkeypatch.setattr(indexes, "_QUERIES", 100)
    return request.param


@pytest.mark.parametrize("k", [1, 9])
def test_search_equals_brute_force_for_stores_of_all_sizes(k, search_form):
    sizes, n_queries = [1, 0, 5, 64, 65, 200, 7], [3, 4, 16, 17, 33, 300, 0]
    z, queries, bounds, arguments = make_stores(sizes, n_queries, 37)
    clients = np.asarray([6, 0, 1, 2, 3, 4, 5])  # in another order than they are stored
    bounds = np.cumsum([0, *np.asarray(n_queries)[clients]])
    results = [Stores(*arguments, threads).search(clients, queries, bounds, k) for threads in (1, 3)]
    assert results[0].distance.tobytes() == results[1].distance.tobytes()
    for place, client in enumerate(clients):
        span, width = slice(*bounds[place : place + 2]), min(k, sizes[client])
        squared, order = search_by_brute_force(z[client], queries[span], k)
        np.testing.assert_array_equal(results[1].label[span, :width], order + arguments[3][client])
        np.testing.assert_allclose(results[1].distance[span, :width], squared, rtol=1e-5)
        assert (results[1].label[span, width:] == -1).all()
        assert np.isinf(results[1].distance[span, width:]).all()


@pytest.mark.parametrize("k", [1, 20])
def test_search_breaks_ties_by_row_and_is_accurate_for_near_duplicates(k, search_form):
    first, second = np.repeat(make_points(3, 64), 30, axis=0), make_points(50, 64) + 100
    blob, ends = flat_indexes([first, second])
    queries = np.concatenate([first[[0, 60]], second[:9]])
    queries[0] += 1  # of the ties, none is at a distance of 0
    queries[2:, 0] += 0.01
    offsets = np.asarray([0, 90, 140])
    result = Stores(blob, ends, np.arange(140), offsets).search([0, 1], queries, np.asarray([0, 2, 11]), k)
    assert result.label[0].tolist() == search_by_brute_force(first, queries[:1], k)[1][0].tolist()
    assert result.label[1].tolist() == [*range(60, 60 + k)]
    assert (result.distance[1] == 0).all()
    expected, order = search_by_brute_force(second, queries[2:], 1)
    np.testing.assert_array_equal(result.label[2:, :1], order + 90)
    np.testing.assert_allclose(result.distance[2:, :1], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Flat", "SQ8", "HNSW8"])
def test_select_client_returns_its_own_rows(kind):
    sizes, z = [6, 0, 9], make_points(15, 8)
    offsets = np.cumsum([0, *sizes])
    raws = [build(kind, own, {})[0] for own in np.split(z, offsets[1:-1])]
    ends = np.cumsum([0, *map(len, raws)])
    stores = Stores(np.concatenate(raws), ends, np.arange(15), offsets)
    for client, (first, count) in enumerate(zip(offsets, sizes, strict=False)):
        store = select_client(stores, client)
        assert store.y.tolist() == [*range(first, first + count)]
        if store.z is None:
            assert search(store.index, z, 1)[1][first : first + count, 0].tolist() == [*range(count)]
        else:
            assert store.z.tolist() == z[first : first + count].tolist()


def test_search_gives_non_finite_queries_no_neighbours(search_form):
    _, queries, bounds, arguments = make_stores([30], [20], 8)
    queries[4, 2], queries[7], queries[9] = np.nan, np.inf, 1e30
    result = Stores(*arguments).search([0], queries, bounds, 3)
    assert (result.label[[4, 7, 9]] == -1).all()
    assert (np.delete(result.label, [4, 7, 9], axis=0) >= 0).all()
