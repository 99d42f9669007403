"""Grids over lambda, k, sigma and capacity: one search, the same answers as building every store anew."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.fl import sweep
from pflcli.fl.neighbours import Stores, flat_indexes, votes

CLASSES = 4


def world(m=30, n=17, seed=0):
    draw = np.random.default_rng(seed)
    stored, queries = draw.normal(size=(m, 5)).astype(np.float32), draw.normal(size=(n, 5)).astype(np.float32)
    return (
        stored,
        draw.integers(0, CLASSES, m),
        queries,
        draw.dirichlet(np.ones(CLASSES), n),
        draw.integers(0, CLASSES, n),
    )


@pytest.mark.parametrize(("k", "sigma"), [(1, 1.0), (7, 0.3), (50, 2.0)])
def test_votes_at_every_capacity_are_those_of_a_store_built_for_it(k, sigma):
    stored, y, queries, *_ = world()
    capacities = [0, 1, 2, 9, 29, 30]
    found = sweep.Ranked.of(stored, y, queries).votes(capacities, k, CLASSES, sigma)
    for place, capacity in enumerate(capacities):
        packed = flat_indexes([stored[:capacity]])
        store = Stores(*packed, y[:capacity], np.asarray([0, capacity]), np.asarray([capacity]))
        near = store.search([0], queries, np.asarray([0, len(queries)]), k, train_only=False)
        expected = votes(near, CLASSES, -np.sqrt(near.distance) / sigma)
        np.testing.assert_allclose(found[place], expected, atol=1e-6)


def test_small_scales_do_not_underflow():
    stored, y, queries, *_ = world()
    found = sweep.Ranked.of(stored + 1000, y, queries).votes([30], 10, CLASSES, 1e-4)
    np.testing.assert_allclose(found.sum(axis=2), 1)


def literal(knn, model, y, lambdas):
    """Answers at every lambda, one by one."""
    lam = np.asarray(lambdas)[:, None, None]
    return np.stack([((((1 - lam) * model + lam * votes).argmax(axis=2)) == y).sum(axis=1) for votes in knn])


def test_intervals_of_lambda_are_the_answers_at_every_lambda():
    draw = np.random.default_rng(0)
    lambdas = np.linspace(0, 1, 101)
    for seed in range(20):
        _, _, _, model, y = world(n=200, seed=seed)
        knn = draw.dirichlet(np.full(CLASSES, 0.2), (3, 200))
        np.testing.assert_array_equal(sweep.correct(knn, model, y, lambdas), literal(knn, model, y, lambdas))


def test_ties_go_to_the_first_class_as_in_argmax():
    # Dyadic fractions: the arithmetic is exact, so ties are ties.
    draw = np.random.default_rng(1)
    model, knn = (draw.integers(0, 3, (2, 300, CLASSES)) / 4 for _ in range(2))
    y, lambdas = draw.integers(0, CLASSES, 300), np.asarray([0, 0.25, 0.5, 0.75, 1])
    knn += (knn.sum(axis=2, keepdims=True) == 0) / 4
    np.testing.assert_array_equal(sweep.correct(knn, model[0], y, lambdas), literal(knn, model[0], y, lambdas))


def test_without_votes_the_model_answers():
    _, _, _, model, y = world()
    found = sweep.correct(np.zeros((1, len(y), CLASSES)), model, y, np.asarray([0, 0.5, 1]))
    assert found.tolist() == [[(model.argmax(axis=1) == y).sum()] * 3]


def test_accuracy_by_client():
    _, _, _, model, y = world()
    knn = np.eye(CLASSES)[y]
    found = sweep.accuracy(knn, model, y, np.asarray([0, 4, 4, 17]), np.asarray([0, 1.0]))
    assert found.shape == (2, 3)
    assert found[1, [0, 2]].tolist() == [1, 1]
    assert np.isnan(found[:, 1]).all()
    right = model.argmax(axis=1) == y
    np.testing.assert_allclose(found[0, [0, 2]], [right[:4].mean(), right[4:].mean()])
