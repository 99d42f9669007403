"""Grids over lambda, k, sigma and capacity: one search, the same answers as building every store anew."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.core.knn.indexes import flat_indexes
from pflcli.core.knn.stores import Stores
from pflcli.core.knn.voting import vote_by_distance
from pflcli.methods.parts import knn_grid as sweep


def rank_samples(stored, y, queries):
    """One client's samples for its queries."""
    return sweep.Ranked.rank_clients(stored, y, np.asarray([0, len(y)]), queries, np.asarray([0, len(queries)]))


CLASSES = 4


def make_samples(m=30, n=17, seed=0):
    draw = np.random.default_rng(seed)
    stored, queries = draw.normal(size=(m, 5)).astype(np.float32), draw.normal(size=(n, 5)).astype(np.float32)
    return (
        stored,
        draw.integers(0, CLASSES, m),
        queries,
        draw.dirichlet(np.ones(CLASSES), n),
        draw.integers(0, CLASSES, n),
    )


def make_store_masks(capacities, m):
    """The first rows of the store, and as many at random that do not stand first."""
    heads = np.arange(m) < np.asarray(capacities)[:, None]
    return np.concatenate([heads, heads[:, np.random.default_rng(1).permutation(m)]])


def test_votes_on_a_grid_equal_those_of_a_store_built_for_each_capacity():
    stored, y, queries, *_ = make_samples()
    stores, ks, sigmas = make_store_masks([0, 1, 2, 9, 29, 30], 30), [1, 7, 50], [1.0, 0.3]
    actual = rank_samples(stored, y, queries).compute_votes(stores, ks, sigmas, CLASSES)
    assert actual.shape == (12, 3, 2, len(queries), CLASSES)
    for c, i, s in np.ndindex(actual.shape[:3]):
        size = int(stores[c].sum())
        store = Stores(*flat_indexes([stored[stores[c]]]), y[stores[c]], np.asarray([0, size]))
        near = store.search([0], queries, np.asarray([0, len(queries)]), ks[i])
        expected = vote_by_distance(near, CLASSES, -np.sqrt(near.distance) / sigmas[s])
        np.testing.assert_allclose(actual[c, i, s], expected, atol=1e-6)


def test_equal_samples_rank_in_stored_order():
    # Many more of them than neighbours: which of the equal ones vote must not depend on who else is stored.
    stored, y, queries, *_ = make_samples()
    stored, y = np.concatenate([stored[:3]] * 10), np.arange(30) % CLASSES
    ranked = rank_samples(stored, y, np.concatenate([queries, stored[:3]]))
    assert ranked.row[:, :10].tolist() == np.sort(ranked.row[:, :10]).tolist()
    assert ranked.row[-3:, :10].tolist() == [list(range(i, 30, 3)) for i in range(3)]


def test_compute_votes_does_not_underflow_when_sigma_is_small():
    stored, y, queries, *_ = make_samples()
    actual = rank_samples(stored + 1000, y, queries).compute_votes(make_store_masks([30], 30), [10], [1e-4], CLASSES)
    np.testing.assert_allclose(actual.sum(axis=-1), 1)


def test_choose_lambdas_breaks_ties_towards_one_half():
    grid = np.asarray([0, 0.1, 0.4, 0.6, 1])
    right = np.asarray([[[3, 3, 3, 3, 3], [3, 3, 2, 2, 3]], [[0, 0, 0, 0, 1], [1, 0, 0, 0, 1]]])
    assert sweep.choose_lambdas(grid, right).tolist() == [[0.4, 0.1], [1, 0]]
    grid = np.asarray([0.3, 0.7])  # in binary fractions 0.7 is nearer
    assert sweep.choose_lambdas(grid, np.asarray([2, 2])) == 0.3


def count_correct_literally(knn, model, y, lambdas):
    """Answers at every lambda, one by one."""
    lam = np.asarray(lambdas)[:, None, None]
    return np.stack([((((1 - lam) * model + lam * votes).argmax(axis=2)) == y).sum(axis=1) for votes in knn])


def test_count_correct_equals_predictions_at_every_lambda():
    draw = np.random.default_rng(0)
    lambdas = np.linspace(0, 1, 101)
    for seed in range(20):
        _, _, _, model, y = make_samples(n=200, seed=seed)
        knn = draw.dirichlet(np.full(CLASSES, 0.2), (3, 200))
        np.testing.assert_array_equal(
            sweep.count_correct(knn, model, y, lambdas), count_correct_literally(knn, model, y, lambdas)
        )


def test_count_correct_breaks_class_ties_like_argmax():
    # Dyadic fractions: the arithmetic is exact, so ties are ties.
    draw = np.random.default_rng(1)
    model, knn = (draw.integers(0, 3, (2, 300, CLASSES)) / 4 for _ in range(2))
    y, lambdas = draw.integers(0, CLASSES, 300), np.asarray([0, 0.25, 0.5, 0.75, 1])
    knn += (knn.sum(axis=2, keepdims=True) == 0) / 4
    np.testing.assert_array_equal(
        sweep.count_correct(knn, model[0], y, lambdas), count_correct_literally(knn, model[0], y, lambdas)
    )


def test_count_correct_uses_the_model_when_there_are_no_votes():
    _, _, _, model, y = make_samples()
    correct = sweep.count_correct(np.zeros((1, len(y), CLASSES)), model, y, np.asarray([0, 0.5, 1]))
    assert correct.tolist() == [[(model.argmax(axis=1) == y).sum()] * 3]


def test_count_correct_by_client_counts_each_client_separately():
    _, _, _, model, y = make_samples()
    knn = np.eye(CLASSES)[y]
    bounds, lambdas = np.asarray([0, 4, 4, 17]), np.asarray([0, 1.0])
    right = model.argmax(axis=1) == y
    actual = sweep.count_correct_by_client(knn[None], model, y, bounds, lambdas)
    assert actual.tolist() == [[[right[:4].sum(), 4], [0, 0], [right[4:].sum(), 13]]]


@pytest.mark.parametrize("cells", [1, 400, 10_000_000])
def test_count_correct_on_grid_for_many_clients_equals_each_client_alone(cells, monkeypatch):
    monkeypatch.setattr(sweep, "_MAX_CELLS_PER_GROUP", cells)
    sizes, asked_of = [5, 0, 30, 1, 7], [4, 3, 0, 6, 9]
    offsets, bounds = np.cumsum([0, *sizes]), np.cumsum([0, *asked_of])
    stored, y, *_ = make_samples(m=offsets[-1])
    _, _, queries, model, truth = make_samples(n=bounds[-1], seed=1)
    grid = [1, 3, 50], [1.0, 0.3], np.linspace(0, 1, 5)
    mask = make_store_masks([0, 2, 20, 43], 43)
    together = sweep.count_correct_on_grid(
        stored, y, offsets, mask, sweep.Queries(queries, model, truth, bounds), *grid
    )
    for client, size in enumerate(sizes):
        rows, span = slice(*offsets[client : client + 2]), slice(*bounds[client : client + 2])
        for c, i, s in np.ndindex(together.shape[1:4]):
            is_stored = mask[c, rows]
            store = np.asarray([0, is_stored.sum()])
            near = Stores(*flat_indexes([stored[rows][is_stored]]), y[rows][is_stored], store).search(
                [0], queries[span], np.asarray([0, asked_of[client]]), grid[0][i]
            )
            votes_of_store = vote_by_distance(near, CLASSES, -np.sqrt(near.distance) / grid[1][s])
            voters = np.where(votes_of_store.sum(axis=1, keepdims=True) > 0, votes_of_store, model[span])
            expected = (
                count_correct_literally(voters[None], model[span], truth[span], grid[2])[0] if asked_of[client] else 0
            )
            np.testing.assert_array_equal(together[client, c, i, s], expected)
        assert size or (together[client] == together[client, :1, :1, :1, :1]).all()
