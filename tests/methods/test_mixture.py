"""The hard EM of PANM: a textbook mixture, and every degenerate case."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pflcli.methods.parts import mixture

NEAR = np.asarray([True] * 4 + [False] * 4)


def test_fit_matches_hand_computed_parameters():
    y = np.asarray([3.0, 5.0, 0.0, 1.0, 2.0])
    actual = mixture.fit(y, np.asarray([True, True, False, False, False]))
    np.testing.assert_allclose(actual.mean, [4, 1])
    np.testing.assert_allclose(actual.variance, [1, 2 / 3])
    np.testing.assert_allclose(actual.share, [0.4, 0.6])


def test_assign_takes_the_component_of_larger_share_times_density():
    parts = mixture.Mixture(np.asarray([2.0, 0.0]), np.asarray([1.0, 4.0]), np.asarray([0.3, 0.7]))
    y = np.linspace(0.01, 1.99, 50)
    density = parts.share * np.exp(-((y[:, None] - parts.mean) ** 2) / (2 * parts.variance)) / parts.variance**0.5
    expected = density[:, 0] > density[:, 1]
    assert expected.any()
    assert not expected.all()
    assert mixture.assign(y, parts, np.zeros(50, bool)).tolist() == expected.tolist()


def match_by_printed_equations(y, near):
    """Eq. 6 to 9 taken literally, but for the start: np.argmax over beta phi(y), until nothing changes."""
    label = np.where(near, 0, 1)
    for _ in range(100):
        weighted = []
        for r in (0, 1):
            part = y[label == r]
            density = np.exp(-((y - part.mean()) ** 2) / (2 * part.var())) / np.sqrt(2 * np.pi * part.var())
            weighted.append(len(part) / len(y) * density)
        new = np.argmax(weighted, axis=0)
        if (new == label).all():
            break
        label = new
    return label == 0


@pytest.mark.parametrize("seed", range(8))
def test_match_neighbours_agrees_with_the_printed_equations_on_clean_mixtures(seed):
    draw = np.random.default_rng(seed)
    same = np.concatenate([draw.random(20) < 0.9, draw.random(20) < 0.3])
    y = draw.normal(size=40) + 8 * same
    near = np.arange(40) < 20
    upper = mixture.match_neighbours(y, near)
    assert upper.tolist() == same.tolist() == match_by_printed_equations(y, near).tolist()


def test_match_neighbours_as_printed_keeps_the_wrong_cluster():
    draw = np.random.default_rng(0)
    same = np.arange(20) < 10
    y = draw.normal(size=20) + 8 * same
    assert mixture.match_neighbours(y, same).tolist() == same.tolist()
    assert mixture.match_neighbours(y, same, as_printed=True).tolist() == (~same).tolist()


def test_match_neighbours_recovers_when_most_initial_labels_are_wrong():
    """Component 0 has the higher mean after every fit, whatever it began with."""
    y = np.asarray([0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 0.1, 0.15])
    near = np.asarray([True, True, True, False, False, False, True, False])
    assert mixture.match_neighbours(y, near).tolist() == (y > 1).tolist()


def test_match_neighbours_separates_two_exact_values():
    """Variances of zero are NaN in the literal equations, and argmax of NaN rejects everybody."""
    y = np.asarray([0.9, 0.9, 0.9, 0.2, 0.2, 0.9, 0.2, 0.2])
    assert mixture.match_neighbours(y, NEAR).tolist() == (y > 0.5).tolist()


@pytest.mark.parametrize("value", [0.0, 1.0, -3e7, 1e8])
def test_match_neighbours_puts_equal_values_in_one_cluster(value):
    assert mixture.match_neighbours(np.full(8, value), NEAR).all()


def test_fit_gives_a_component_of_one_value_a_quarter_of_the_variance():
    y = np.asarray([4.0, 0.0, 1.0, 2.0])
    near = np.asarray([True, False, False, False])
    assert mixture.fit(y, near).variance[0] == pytest.approx(y.var() / 4)
    assert mixture.match_neighbours(y, near).tolist() == near.tolist()


def test_fit_bounds_the_variance_of_a_component_below_by_a_thousandth():
    y = np.asarray([1.0, 1.0, 0.0, 0.3])
    assert mixture.fit(y, np.asarray([True, True, False, False])).variance[0] == pytest.approx(1e-3 * y.var())


@pytest.mark.parametrize("near", [[True, False], [True, True, True], [False, False, False, False], [True], []])
def test_match_neighbours_keeps_the_initial_labels_in_degenerate_cases(near):
    y = np.arange(len(near), dtype=float)
    assert mixture.match_neighbours(y, np.asarray(near, dtype=bool)).tolist() == near


def test_assign_with_clamp_keeps_high_values_in_the_upper_component():
    """Unequal variances make the lower component win at both ends; no value above the upper mean is given away."""
    parts = mixture.Mixture(np.asarray([1.0, 0.0]), np.asarray([0.01, 4.0]), np.asarray([0.5, 0.5]))
    y, before = np.asarray([-1.0, 0.0, 1.0, 9.0]), np.zeros(4, bool)
    assert mixture.assign(y, parts, before).tolist() == [False, False, True, True]
    assert mixture.assign(y, parts, before, clamp=False).tolist() == [False, False, True, False]


def test_assign_keeps_the_label_of_a_tie():
    parts = mixture.Mixture(np.asarray([1.0, -1.0]), np.ones(2), np.asarray([0.5, 0.5]))
    for before in (True, False):
        assert mixture.assign(np.zeros(1), parts, np.asarray([before])).tolist() == [before]


def test_match_neighbours_leaves_one_cluster_when_a_component_becomes_empty():
    """Clamped and ordered components each keep a value; as printed one may swallow the other, then fit 0 / 0."""
    y, near = np.asarray([-0.3, 0.3, -1.5, 0.6]), np.asarray([True, False, False, False])
    swallowed = mixture.assign(y, mixture.fit(y, ~near), ~near, clamp=False)
    assert swallowed.all()
    assert mixture.match_neighbours(y, near, as_printed=True).all()


def test_match_neighbours_replaces_non_finite_values():
    y = np.asarray([np.inf, 5.0, 5.1, -np.inf, np.nan, 0.1, 0.0])
    assert mixture.replace_nonfinite(y).tolist() == [5.1, 5.0, 5.1, 0.0, 0.0, 0.1, 0.0]
    near = np.asarray([True, True, False, False, False, True, False])
    assert mixture.match_neighbours(y, near).tolist() == [True, True, True, False, False, False, False]
    assert mixture.replace_nonfinite(np.asarray([np.inf, np.nan])).tolist() == [1, 0]


VALUES = st.floats(-1e6, 1e6) | st.sampled_from([np.inf, -np.inf, np.nan, 0.0, 1.0])


@given(st.data(), st.integers(0, 12))
def test_match_neighbours_always_ends_with_the_higher_values(data, count):
    """Whatever the values: no NaN, no endless loop, and where EM ran, what is kept lies above what is not."""
    y = data.draw(arrays(np.float64, count, elements=VALUES))
    near = data.draw(arrays(np.bool_, count))
    upper = mixture.match_neighbours(y, near)
    assert upper.shape == (count,)
    if count >= 3 and near.any() and not near.all():
        assert upper.any()
        values = mixture.replace_nonfinite(y)
        if not upper.all():
            assert values[upper].max() > values[~upper].min()
            assert values[upper].mean() >= values[~upper].mean()
