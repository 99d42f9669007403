"""Partition schemes: splits are disjoint, complete and reproducible, and every scheme ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pflcli.core import registry, schemes
from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError
from pflcli.core.schemes import clusters, pachinko, redistribute

Y = np.repeat(np.arange(5), [40, 30, 20, 10, 50])
OWNER = np.asarray([f"o{i % 7}" for i in range(len(Y))])


def make_samples(y, shape=(4, 4), dtype=np.uint8, owner=None, coarse=None):
    return Samples(np.zeros((len(y), *shape), dtype), y, int(y.max()) + 1, owner, coarse=coarse)


ALL = make_samples(Y, owner=OWNER, coarse=Y // 2)


def split_samples(name, clients=6, seed=0, of=ALL, **options):
    module = schemes.load(name)
    return module.split(of, clients, module.Config(**options), np.random.default_rng(seed))


@pytest.mark.parametrize("name", registry.names("schemes"))
def test_scheme_gives_disjoint_parts_that_depend_on_the_seed(name):
    first, again, other = (split_samples(name, seed=seed) for seed in (0, 0, 1))
    rows = np.concatenate(first)
    assert len(set(rows.tolist())) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(Y)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in split_samples("iid", clients=7)]
    assert sum(sizes) == len(Y)
    assert max(sizes) - min(sizes) <= 1


def test_natural_scheme_makes_owners_clients():
    parts = split_samples("natural", clients=None)
    assert [set(OWNER[part]) for part in parts] == [{f"o{i}"} for i in range(7)]
    assert sum(map(len, parts)) == len(Y)
    assert all(len(set(OWNER[part])) == 1 for part in split_samples("natural", clients=3))
    with pytest.raises(UsageError, match="no natural clients"):
        split_samples("natural", clients=None, of=make_samples(Y))
    with pytest.raises(UsageError, match="8 clients are more than the 7 owners"):
        split_samples("natural", clients=8)


@settings(max_examples=60, deadline=None)
@given(alpha=st.floats(1e-300, 1e300), clients=st.integers(1, len(Y)), seed=st.integers(0, 9))
def test_dirichlet_assigns_every_sample(alpha, clients, seed):
    parts = split_samples("dirichlet", clients=clients, seed=seed, alpha=alpha)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(Y)))


def test_dirichlet_shares_have_the_moments_of_the_paper():
    """Each label's shares over m clients: mean 1/m, variance (1/m)(1 - 1/m) / (m alpha + 1)."""
    m, alpha, n = 10, 0.3, 2000
    y = np.repeat(np.arange(300), n)
    parts = split_samples("dirichlet", clients=m, of=make_samples(y, shape=()), alpha=alpha)
    shares = np.stack([np.bincount(y[part], minlength=300) for part in parts]) / n
    np.testing.assert_allclose(shares.mean(), 1 / m)
    expected = (1 / m) * (1 - 1 / m) / (m * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_classes_scheme_gives_each_client_n_classes_evenly(n):
    y = np.repeat(Y, 10)  # enough of each class for every holder
    parts = split_samples("classes", clients=10, of=make_samples(y), n=n)
    classes = [set(y[part].tolist()) for part in parts]
    assert all(len(labels) == n for labels in classes)
    holders = [sum(label in labels for labels in classes) for label in range(5)]
    assert sum(holders) == 10 * n
    assert max(holders) - min(holders) <= 2
    with pytest.raises(UsageError, match="n=6"):
        split_samples("classes", clients=10, n=6)


@pytest.mark.parametrize("name", sorted({*registry.names("schemes")} - {"natural"}))
def test_scheme_refuses_no_or_too_many_clients(name):
    with pytest.raises(UsageError, match="needs a number of clients"):
        split_samples(name, clients=None)
    with pytest.raises(UsageError, match="151 clients are more than the 150 samples"):
        split_samples(name, clients=151)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=9), minimum=st.integers(0, 8))
def test_redistribute_reaches_the_minimum_and_loses_no_sample(sizes, minimum):
    parts = [part.astype(np.int64) for part in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]
    if minimum * len(sizes) > sum(sizes):
        with pytest.raises(UsageError, match="at least"):
            redistribute(parts, minimum, np.random.default_rng(0))
        return
    moved = redistribute(parts, minimum, np.random.default_rng(0))
    assert min(map(len, moved)) >= minimum
    assert sorted(np.concatenate(moved).tolist()) == list(range(sum(sizes)))


def test_shards_scheme_deals_two_label_shards_per_client():
    """12 samples of 3 labels in 6 shards of 2: every shard has one label, so 2 shards have two labels at most."""
    y = np.asarray([2, 0, 1, 0, 2, 1, 0, 1, 2, 2, 1, 0])
    parts = split_samples("shards", clients=3, of=make_samples(y), n=2)
    assert [len(part) for part in parts] == [4, 4, 4]
    assert sorted(np.concatenate(parts).tolist()) == list(range(12))
    for part in parts:
        assert set(np.bincount(y[part], minlength=3).tolist()) <= {0, 2, 4}


def test_shards_are_runs_of_the_sorted_labels():
    """As many shards as clients: put in order, they are the sorted labels cut into equal runs."""
    parts = split_samples("shards", clients=4, n=1)
    assert sorted(map(len, parts)) == [37, 37, 38, 38]
    runs = sorted((sorted(Y[part].tolist()) for part in parts), key=lambda run: (run[0], run[-1]))
    assert np.concatenate(runs).tolist() == sorted(Y.tolist())
    with pytest.raises(UsageError, match="60 clients with n=3 shards each need 180 samples, there are 150"):
        split_samples("shards", clients=60, n=3)


@pytest.mark.parametrize("options", [{"sizes": "dirichlet"}, {"sizes": "log-normal"}])
def test_quantity_scheme_skews_sizes_and_not_labels(options):
    y = np.tile(np.arange(4), 25_000)
    parts = split_samples("quantity", clients=20, of=make_samples(y, shape=()), **options)
    sizes = np.asarray([len(part) for part in parts])
    assert sizes.sum() == len(y)
    assert sizes.max() > 3 * np.median(sizes)
    for part in parts:
        share = np.bincount(y[part], minlength=4) / max(len(part), 1)
        assert len(part) < 500 or np.abs(share - 0.25).max() < 4 * 0.5 / np.sqrt(len(part))


def test_quantity_sizes_have_the_moments_of_their_distributions():
    m, beta, sigma, y = 8, 0.5, 0.4, np.zeros(10_000, np.int64)
    drawn = {
        name: np.asarray(
            [
                [len(part) for part in split_samples("quantity", m, seed, make_samples(y, ()), **options)]
                for seed in range(400)
            ]
        )
        for name, options in (
            ("dirichlet", {"beta": beta}),
            ("log-normal", {"sizes": "log-normal", "sigma": sigma}),
        )
    }
    expected = (1 / m) * (1 - 1 / m) / (m * beta + 1)
    assert (drawn["dirichlet"] / len(y)).var() == pytest.approx(expected, rel=0.1)
    logs = np.log(drawn["log-normal"])
    # Ratios of sizes do not depend on the sum: log differences of two clients have variance 2 sigma^2.
    assert (logs[:, 0] - logs[:, 1]).var() == pytest.approx(2 * sigma**2, rel=0.2)


@settings(max_examples=40, deadline=None)
@given(strength=st.floats(1e-300, 1e300), clients=st.integers(1, len(Y)), seed=st.integers(0, 9))
def test_quantity_assigns_every_sample(strength, clients, seed):
    for options in ({"beta": strength}, {"sizes": "log-normal", "sigma": min(max(strength, 1e-9), 100)}):
        parts = split_samples("quantity", clients=clients, seed=seed, **options)
        assert len(parts) == clients
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(Y)))


CIFAR = np.repeat(np.arange(100), 600)


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.floats(1e-300, 1e300),
    beta=st.floats(1e-300, 1e300),
    clients=st.integers(1, len(Y)),
    seed=st.integers(0, 9),
)
def test_pachinko_gives_every_client_the_same_number_of_samples(alpha, beta, clients, seed):
    parts = split_samples("pachinko", clients=clients, seed=seed, alpha=alpha, beta=beta)
    assert [len(part) for part in parts] == [len(Y) // clients] * clients
    assert len(set(np.concatenate(parts).tolist())) == clients * (len(Y) // clients)


def test_pachinko_with_tiny_alpha_and_beta_separates_labels():
    """Next to alpha = 0 a client keeps to one coarse label until it is used up: 4 labels of 10 for 4 clients of 10."""
    fine = np.repeat(np.arange(8), 5)
    parts = split_samples("pachinko", clients=4, of=make_samples(fine, coarse=fine // 2), alpha=1e-9)
    assert sorted(tuple(np.unique(fine[part])) for part in parts) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    # And next to beta = 0 to one fine label below it: 8 clients of 5.
    parts = split_samples("pachinko", clients=8, of=make_samples(fine, coarse=fine // 2), alpha=1e-9, beta=1e-9)
    assert sorted(tuple(np.unique(fine[part])) for part in parts) == [(label,) for label in range(8)]


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 10.0), (2.0, 0.5)])
def test_pachinko_has_the_moments_of_dirichlet_multinomials(alpha, beta):
    """n draws from Dirichlet(a) over K labels: the variance of a count is n/K (1 - 1/K) (n + K a) / (1 + K a)."""
    n, above, below = 60, 4, 3
    counts = []
    for seed in range(1500):
        pool = {c: {c * below + f: list(range(n)) for f in range(below)} for c in range(above)}
        pachinko._draw_client(pool, n, pachinko.Config(alpha, beta), np.random.default_rng(seed))
        counts.append([[n - len(pool[c].get(c * below + f, ())) for f in range(below)] for c in range(above)])
    counted = np.asarray(counts)
    coarse = counted.sum(axis=2)
    expected = n / above * (1 - 1 / above) * (n + above * alpha) / (1 + above * alpha)
    assert coarse.var(axis=0).mean() == pytest.approx(expected, rel=0.08)
    # Below a coarse label with s samples the same holds with n = s.
    spread = (counted - coarse[:, :, None] / below) ** 2
    within = coarse / below * (1 - 1 / below) * (coarse + below * beta) / (1 + below * beta)
    assert spread.mean() == pytest.approx(within.mean(), rel=0.08)


def test_pachinko_is_as_uneven_as_in_the_paper():
    """CIFAR-100's 60,000 images, 200 clients of 300: the authors' clients hold 8 / 51 / 75 classes (min/median/max)."""
    parts = split_samples("pachinko", clients=200, of=make_samples(CIFAR, (), coarse=CIFAR // 5))
    class_counts = [len(np.unique(CIFAR[part])) for part in parts]
    assert {len(part) for part in parts} == {300}
    assert np.median(class_counts) == pytest.approx(51, abs=5)
    assert max(class_counts) == pytest.approx(75, abs=10)
    assert min(class_counts) < 30


def test_pachinko_coarse_labels_concentrate_as_alpha_falls():
    tops = []
    for alpha in (100.0, 1.0, 0.1):
        of = make_samples(CIFAR[::10], (), coarse=CIFAR[::10] // 5)
        parts = split_samples("pachinko", clients=30, of=of, alpha=alpha)
        tops.append(np.mean([np.bincount(of.coarse[part]).max() / len(part) for part in parts]))
    assert tops[0] < 0.12
    assert tops[0] < tops[1] - 0.05 < tops[2] - 0.2


def test_pachinko_needs_coarse_labels():
    with pytest.raises(UsageError, match="needs coarse labels"):
        split_samples("pachinko", of=make_samples(Y))


def test_clusters_scheme_deals_samples_evenly():
    parts = split_samples("clusters", clients=7, groups=3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(Y)))
    assert {len(part) for part in parts} == {21, 22}
    assert clusters.cluster(7, clusters.Config(groups=3)).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_clusters_scheme_with_alpha_skews_labels_within_clusters():
    y = np.tile(np.arange(5), 400)
    even, uneven = (split_samples("clusters", clients=20, of=make_samples(y), groups=2, alpha=a) for a in (None, 0.1))
    groups = clusters.cluster(20, clusters.Config(groups=2))
    for group in (0, 1):
        # Each group holds what it would have held: only its clients divide it otherwise.
        both = [
            np.sort(np.concatenate([parts[c] for c in np.flatnonzero(groups == group)])) for parts in (even, uneven)
        ]
        np.testing.assert_array_equal(*both)
    top = [np.mean([np.bincount(y[p]).max() / len(p) for p in parts if len(p)]) for parts in (even, uneven)]
    assert top[0] < 0.3
    assert top[1] > 0.5


@pytest.mark.parametrize(("groups", "degrees"), [(1, [0]), (2, [0, 180]), (3, [0, 90, 180]), (4, [0, 90, 180, 270])])
def test_cluster_rotations_match_hand_computed_images(groups, degrees):
    """Counter-clockwise quarter turns of [[1, 2], [3, 4]]."""
    turned = {0: [[1, 2], [3, 4]], 90: [[2, 4], [1, 3]], 180: [[4, 3], [2, 1]], 270: [[3, 1], [4, 2]]}
    x, y = np.asarray([[[1, 2], [3, 4]]], np.uint8), np.asarray([1])
    for group, angle in enumerate(degrees):
        cfg = clusters.Config(groups=groups)
        actual, label = clusters.transform(x, y, group, 2, cfg, np.random.default_rng(0))
        assert actual[0].tolist() == turned[angle]
        assert label.tolist() == [1]


def test_draw_permutations_gives_distinct_bijections():
    table = clusters.draw_permutations(6, 3, np.random.default_rng(0))  # all that there are
    assert table[0].tolist() == [0, 1, 2]
    assert {tuple(sorted(row)) for row in table.tolist()} == {(0, 1, 2)}
    assert len({tuple(row) for row in table.tolist()}) == 6
    longer = clusters.draw_permutations(5, 10, np.random.default_rng(3))
    np.testing.assert_array_equal(clusters.draw_permutations(2, 10, np.random.default_rng(3)), longer[:2])


def test_clusters_scheme_refuses_invalid_options():
    with pytest.raises(UsageError, match="groups=7 are more than the 6 clients"):
        split_samples("clusters", groups=7)
    with pytest.raises(UsageError, match="more than the 4 rotations"):
        split_samples("clusters", groups=5)
    with pytest.raises(UsageError, match="more than the 2 permutations of 2 labels"):
        split_samples("clusters", of=make_samples(np.tile([0, 1], 9)), groups=3, kind="labels")
    assert len(split_samples("clusters", groups=5, kind="both")) == 6
    for of in (make_samples(Y, (4, 3), np.float32), make_samples(Y, (9,), np.int16)):
        for kind in ("rotation", "both"):
            with pytest.raises(UsageError, match=f"kind={kind} turns images"):
                split_samples("clusters", of=of, kind=kind)
        assert len(split_samples("clusters", of=of, kind="labels")) == 6
    wide = make_samples(Y, (4, 6, 3))
    with pytest.raises(UsageError, match="4x6x3 are not square"):
        split_samples("clusters", of=wide, groups=3)
    assert len(split_samples("clusters", of=wide, groups=2)) == 6
