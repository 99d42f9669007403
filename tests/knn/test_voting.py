"""Votes without distances: by hand, with noise of a known distribution, and what they need of a store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import worlds
from pflcli.core import rng
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.knn import voting
from pflcli.core.knn.embedded import Embedded
from pflcli.core.knn.indexes import build, flat_indexes
from pflcli.core.knn.stores import Neighbours, Stores
from pflcli.methods import knn_per_extended


def make_neighbours(*labels):
    label = np.asarray(labels)
    return Neighbours(np.where(label < 0, np.inf, np.arange(label.shape[1]) + 1.0), label)


def test_votes_match_hand_computed_counts():
    """Classes 2, 0, 2, a tie of 1 and 2, and an empty store."""
    near = make_neighbours([2, 0, 2], [2, 1, -1], [-1, -1, -1])
    by_class = voting.count_votes(near, 3)
    assert by_class.tolist() == [[1, 0, 2], [0, 1, 1], [0, 0, 0]]
    np.testing.assert_allclose(voting.normalize_votes(by_class), [[1 / 3, 0, 2 / 3], [0, 0.5, 0.5], [0, 0, 0]])
    assert voting.select_majority(by_class).tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]  # of a tie the first class
    noise = np.asarray([[1.5, 0, 0], [0, 0, 0.1], [9, 0, 0]])
    assert voting.select_majority(by_class, noise).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_votes_of_one_neighbour_are_the_same_for_every_rule():
    expected = worlds.answers("knn-per-extended", worlds.run("knn-per-extended", options={"k": 1}), {})
    for vote in ("count", "label"):
        actual = worlds.answers("knn-per-extended", worlds.run("knn-per-extended", options={"k": 1, "vote": vote}), {})
        assert all(np.array_equal(actual[split], expected[split]) for split in expected)


def test_noisy_votes_approach_majority_or_guessing_with_epsilon():
    options = {"k": 5, "weight": 1.0}
    expected = worlds.answers(
        "knn-per-extended", worlds.run("knn-per-extended", options={**options, "vote": "label"}), {}
    )["test"]
    by_epsilon = {
        epsilon: worlds.answers(
            "knn-per-extended",
            worlds.run("knn-per-extended", options={**options, "vote": "noisy", "vote_epsilon": epsilon}),
            {},
        )["test"]
        for epsilon in (1e-6, 1e6)
    }
    untied = np.asarray([np.sort(row)[-1] > np.sort(row)[-2] for row in count_votes_of_run(5)])
    assert np.array_equal(by_epsilon[1e6][untied], expected[untied])
    assert abs((by_epsilon[1e-6] == expected).all(axis=1).mean() - 1 / worlds.CLASSES) < 0.25
    again = worlds.run("knn-per-extended", options={**options, "vote": "noisy", "vote_epsilon": 1e-6})
    for client in again.clients:  # alone or beside others, asked again: the same answer
        alone = worlds.answers("knn-per-extended", again, {}, np.asarray([client]))["test"]
        own = slice(*again.embeddings["test"].offsets[client : client + 2])
        assert np.array_equal(alone, by_epsilon[1e-6][own])


def count_votes_of_run(k):
    run = worlds.run("knn-per-extended", options={"k": k})
    part = run.embeddings["test"]
    return voting.count_votes(run.stores.search(run.clients, part.z, part.offsets, k), worlds.CLASSES)


def test_vote_noise_has_the_scale_of_twice_the_inverse_epsilon():
    values = draw_vote_noise([make_store([0, 1])], 0, np.arange(4000))
    assert np.abs(values).mean() == pytest.approx(2 / 0.5, rel=0.05)
    assert np.median(values) == pytest.approx(0, abs=0.2)


def make_store(labels):
    """Two samples of one feature with these labels."""
    return np.asarray([[0.0], [1.0]], np.float32), np.asarray(labels)


def draw_vote_noise(stores, client, queries, secret=0):
    """The noise at epsilon 0.5 on the votes of two classes for queries to one of the clients with these stores."""
    blob = flat_indexes([z for z, _ in stores])
    counts = 2 * np.arange(len(stores) + 1)
    held = Stores(*blob, np.concatenate([y for _, y in stores]), counts)
    z = np.asarray(queries, np.float32)[:, None]
    part = Embedded(z, np.zeros((len(z), 2), np.float32), None, np.asarray([0, len(z)]))
    return voting.draw_noise(part, np.asarray([client]), 2, 0.5, held, partial(rng.generator, secret))


def test_vote_noise_repeats_only_for_the_same_query_client_store_and_secret():
    """Answers to a query that differ between two stores would otherwise tell for certain that its votes differ."""
    stores, queries = [make_store([0, 1]), make_store([0, 1])], np.arange(2000)
    first = draw_vote_noise(stores, 0, queries)
    np.testing.assert_array_equal(draw_vote_noise(stores, 0, queries[::-1])[::-1], first)
    relabelled, moved = [make_store([1, 1]), stores[1]], [(stores[0][0] + 1, stores[0][1]), stores[1]]
    for other in (
        draw_vote_noise(stores, 1, queries),
        draw_vote_noise(relabelled, 0, queries),
        draw_vote_noise(moved, 0, queries),
        draw_vote_noise(stores, 0, queries, secret=1),
    ):
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.1


@pytest.mark.parametrize("k", [1, 4])
def test_replacing_one_sample_moves_at_most_one_vote(k):
    draw = np.random.default_rng(0)
    z, y, queries = draw.normal(size=(12, 2)).astype(np.float32), draw.integers(0, 3, 12), draw.normal(size=(30, 2))
    votes, most = [], 0
    for trial in range(40):
        own, labels = z.copy(), y.copy()
        if trial:
            own[trial % 12], labels[trial % 12] = draw.normal(size=2), draw.integers(0, 3)
        stores = Stores(*flat_indexes([own]), labels, np.asarray([0, 12]))
        near = stores.search([0], queries.astype(np.float32), np.asarray([0, 30]), k)
        votes.append(voting.count_votes(near, 3))
        most = max(most, np.abs(votes[-1] - votes[0]).sum(axis=1).max())
    assert most == voting.SENSITIVITY


def test_noisy_votes_are_refused_without_an_exact_store_of_samples():
    run = worlds.run("knn-per-extended", options={"vote": "noisy"})
    knn_per_extended.personalize(run, {}, run.clients)
    size = len(run.stores.y)
    vectors = [part + 1 for part in np.split(run.embeddings["train"].z, run.stores.offsets[1:-1])]
    mixed = np.split(run.embeddings["train"].z, run.stores.offsets[1:-1])
    largest = int(np.diff(run.stores.offsets).argmax())
    mixed[largest] = np.concatenate([mixed[largest][:-1], mixed[largest][-1:] + 1])  # a single vector is no sample
    for stored in (vectors, mixed):
        stores = Stores(*flat_indexes(stored), run.stores.y[:size], run.stores.offsets)
        run = replace(run, inputs=replace(run.inputs, stores=stores))
        with pytest.raises(UnsuitedError, match="exact store of samples"):
            knn_per_extended.personalize(run, {}, run.clients)
    raw, _ = build("SQ8", vectors[0], {})
    assert not voting.contains_only_samples(SimpleNamespace(blob=raw, bytes=[0, len(raw)], offsets=[0, 1]), 0, [])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("knn-per-extended", {"vote": "count", "decay": "auto"}),
        ("knn-per-extended", {"vote": "label", "sigma": "auto"}),
        ("knn-per-plus", {"vote": "noisy"}),
        ("knn-per-extended", {"vote_epsilon": 0}),
    ],
)
def test_options_that_reveal_distances_are_refused_with_hidden_votes(method, options):
    with pytest.raises(UsageError):
        worlds.run(method, options=options)
