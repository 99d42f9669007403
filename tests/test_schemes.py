"""Partition schemes and the partition step: disjoint, exhaustive, keyed, and never without end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pflcli import registry
from pflcli.artifacts import partition as artifact
from pflcli.artifacts.artifact import open_artifact
from pflcli.data import Samples
from pflcli.errors import UsageError
from pflcli.schemes import classes, dirichlet, natural, redistribute
from pflcli.steps.partition import _assemble, partition

Y = np.repeat(np.arange(5), [40, 30, 20, 10, 50])
OWNER = np.asarray([f"o{i % 7}" for i in range(len(Y))])


def split(name, clients=6, seed=0, y=Y, owner=OWNER, **options):
    module = registry.load("schemes", name)
    return module.split(y, owner, clients, module.Config(**options), np.random.default_rng(seed))


@pytest.mark.parametrize("name", registry.names("schemes"))
def test_parts_are_disjoint_valid_and_belong_to_the_seed(name):
    first, again, other = (split(name, seed=seed) for seed in (0, 0, 1))
    rows = np.concatenate(first)
    assert len(set(rows.tolist())) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(Y)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in split("iid", clients=7)]
    assert sum(sizes) == len(Y)
    assert max(sizes) - min(sizes) <= 1


def test_natural_clients_are_owners():
    parts = split("natural", clients=None)
    assert [set(OWNER[part]) for part in parts] == [{f"o{i}"} for i in range(7)]
    assert sum(map(len, parts)) == len(Y)
    assert all(len(set(OWNER[part])) == 1 for part in split("natural", clients=3))
    with pytest.raises(UsageError, match="no natural clients"):
        natural.split(Y, None, None, natural.Config(), np.random.default_rng(0))
    with pytest.raises(UsageError, match="8 clients are more than the 7 owners"):
        split("natural", clients=8)


@settings(max_examples=60, deadline=None)
@given(alpha=st.floats(1e-300, 1e300), clients=st.integers(1, len(Y)), seed=st.integers(0, 9))
def test_dirichlet_ends_and_places_every_sample(alpha, clients, seed):
    parts = split("dirichlet", clients=clients, seed=seed, alpha=alpha)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(Y)))


def test_dirichlet_shares_have_the_moments_of_the_paper():
    """Each label's shares over m clients: mean 1/m, variance (1/m)(1 - 1/m) / (m alpha + 1)."""
    m, alpha, n = 10, 0.3, 2000
    y = np.repeat(np.arange(300), n)
    parts = dirichlet.split(y, None, m, dirichlet.Config(alpha), np.random.default_rng(0))
    shares = np.stack([np.bincount(y[part], minlength=300) for part in parts]) / n
    np.testing.assert_allclose(shares.mean(), 1 / m)
    expected = (1 / m) * (1 - 1 / m) / (m * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_each_client_holds_n_classes_evenly_dealt(n):
    y = np.repeat(Y, 10)  # enough of each class for every holder
    parts = classes.split(y, None, 10, classes.Config(n), np.random.default_rng(0))
    held = [set(y[part].tolist()) for part in parts]
    assert all(len(labels) == n for labels in held)
    holders = [sum(label in labels for labels in held) for label in range(5)]
    assert sum(holders) == 10 * n
    assert max(holders) - min(holders) <= 2
    with pytest.raises(UsageError, match="n=6"):
        classes.split(Y, None, 10, classes.Config(6), np.random.default_rng(0))


@pytest.mark.parametrize("name", ["iid", "dirichlet", "classes"])
def test_clients_are_needed_and_not_too_many(name):
    with pytest.raises(UsageError, match="needs a number of clients"):
        split(name, clients=None)
    with pytest.raises(UsageError, match="151 clients are more than the 150 samples"):
        split(name, clients=151)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=9), minimum=st.integers(0, 8))
def test_redistribution_fills_everyone_and_loses_nothing(sizes, minimum):
    parts = [part.astype(np.int64) for part in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]
    if minimum * len(sizes) > sum(sizes):
        with pytest.raises(UsageError, match="at least"):
            redistribute(parts, minimum, np.random.default_rng(0))
        return
    moved = redistribute(parts, minimum, np.random.default_rng(0))
    assert min(map(len, moved)) >= minimum
    assert sorted(np.concatenate(moved).tolist()) == list(range(sum(sizes)))


def test_splits_of_clients_of_every_size():
    sizes = [0, 1, 2, 3, 5, 10, 100]
    n = sum(sizes)
    samples = Samples(np.zeros((n, 2), np.float32), np.zeros(n, np.int64), 1)
    parts = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    made = _assemble(samples, parts, (0.6, 0.2, 0.2), seed=0)
    made.check("here")
    assert made.sizes.sum(axis=1).tolist() == sizes
    assert made.sizes.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0], [1, 1, 1], [3, 1, 1], [6, 2, 2], [60, 20, 20]]


def test_the_artifact_holds_the_source_rows(tmp_path):
    made = partition("writers", tmp_path / "p", scheme="dirichlet", options={"alpha": 0.05}, clients=40)
    held = artifact.read(open_artifact(tmp_path / "p"))
    source = registry.load("datasets", "writers").load(None)
    np.testing.assert_array_equal(source.x[held.sample], held.x)
    np.testing.assert_array_equal(source.y[held.sample], held.y)
    assert len(held.y) == len(source.y) == made.summary["samples"]
    assert made.summary["empty"] == np.flatnonzero(held.sizes.sum(axis=1) == 0).tolist()
    filled = partition("writers", tmp_path / "q", scheme="dirichlet", clients=40, min_samples=20)
    assert filled.summary["smallest"] >= 20
