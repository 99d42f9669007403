"""Prototypes: their shares of the samples, centres that are means, and stores that contain them."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.artifacts.kinds import datastore, embeddings
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.core.errors import UsageError
from pflcli.core.knn.prototypes import build_prototypes, divide_among_classes, k_means


def make_rng(seed=0):
    return np.random.default_rng(seed)


def test_divide_among_classes_matches_hand_computed_shares():
    # One each; then 8/3, 8/5 against 4/3 and 2/3; and so on.
    assert divide_among_classes(np.asarray([8, 4, 2]), 3).tolist() == [1, 1, 1]
    assert divide_among_classes(np.asarray([8, 4, 2]), 4).tolist() == [2, 1, 1]
    assert divide_among_classes(np.asarray([8, 4, 2]), 7).tolist() == [4, 2, 1]
    assert divide_among_classes(np.asarray([8, 4, 2]), 1).tolist() == [1, 1, 1]
    assert divide_among_classes(np.asarray([8, 1, 2]), 100).tolist() == [8, 1, 2]
    assert divide_among_classes(np.zeros(0, int), 3).tolist() == []


@pytest.mark.parametrize("seed", range(8))
def test_k_means_separates_distant_groups(seed):
    middles = np.asarray([[0, 0], [100, 0], [0, 100]])
    x = (np.repeat(middles, 20, axis=0) + make_rng().normal(size=(60, 2))).astype(np.float32)
    centres = k_means(x, 3, make_rng(seed))
    expected = np.stack([x[i * 20 : i * 20 + 20].mean(axis=0) for i in range(3)])
    order = [np.linalg.norm(centres - middle, axis=1).argmin() for middle in middles]
    np.testing.assert_allclose(centres[order], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_k_means_centres_are_means_of_their_samples(seed):
    x = make_rng(seed).normal(size=(80, 6)).astype(np.float32)
    centres = k_means(x, 9, make_rng(seed))
    nearest = ((x[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert len(np.unique(nearest)) == 9
    for centre in range(9):
        np.testing.assert_allclose(centres[centre], x[nearest == centre].mean(axis=0), atol=1e-5)


def test_k_means_handles_equal_samples():
    centres = k_means(np.ones((7, 3), np.float32), 4, make_rng())
    np.testing.assert_array_equal(centres, np.ones((4, 3)))


def test_build_prototypes_keeps_samples_of_classes_below_their_share():
    z, y = make_rng().normal(size=(30, 4)).astype(np.float32), np.asarray([2] * 27 + [0] + [1] * 2)
    centre, label, row = build_prototypes(z, y, 6, make_rng())
    assert label.tolist() == [0, 1, 2, 2, 2, 2]
    assert row.tolist() == [27, -1, -1, -1, -1, -1]
    np.testing.assert_array_equal(centre[0], z[27])
    np.testing.assert_allclose(centre[1], z[28:].mean(axis=0), rtol=1e-6)
    vectors, label, row = build_prototypes(z, y, 30, make_rng())
    np.testing.assert_array_equal(vectors, z[row])
    np.testing.assert_array_equal(label, y[row])


@pytest.mark.parametrize(("count", "expected"), [(20, None), (0.25, None), (1000, "all")])
def test_datastore_stores_prototypes_within_the_given_count(small, tmp_path, count, expected):
    build_datastore(small.e, tmp_path / "d", prototypes=count)
    packed = datastore.read(open_artifact(tmp_path / "d"))
    train = embeddings.read(open_artifact(small.e))["train"]
    for client in range(6):
        stored = packed.y[packed.offsets[client] : packed.offsets[client + 1]]
        own = train.y[train.offsets[client] : train.offsets[client + 1]]
        if expected == "all":
            assert len(stored) == len(own)
            continue
        capacity = np.ceil(round(min(1, count if count < 1 else count / len(own)) * len(own), 6))
        assert len(stored) == max(capacity, len(np.unique(own)))
        assert set(stored) == set(own)
    assert (packed.sample >= -1).all()
    assert (packed.sample == -1).any() == (expected is None)


@pytest.mark.parametrize("count", [0, -3, 2.5, float("nan")])
def test_build_datastore_refuses_invalid_numbers_of_prototypes(small, tmp_path, count):
    with pytest.raises(UsageError, match="--prototypes"):
        build_datastore(small.e, tmp_path / "d", prototypes=count)
