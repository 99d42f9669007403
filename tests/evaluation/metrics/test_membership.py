"""Scores of an attacker and their areas: against values worked out by hand, scikit-learn, and simulated attackers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from pflcli.plugins.audits import membership


def test_area_matches_hand_computed_values():
    """Members 3, 2, 2 and non-members 2, 1: of six pairs four are won and two tied, (4 + 1) / 6."""
    scores, member = np.asarray([3.0, 2, 2, 2, 1]), np.asarray([True, True, True, False, False])
    assert membership.area(scores, member).value == pytest.approx(5 / 6)
    assert membership.area(-scores, member).value == pytest.approx(1 / 6)
    assert membership.area(scores, np.ones(5, bool)) is None
    assert membership.area(scores, np.zeros(5, bool)) is None


def test_area_and_roc_curve_equal_scikit_learn():
    draw = np.random.default_rng(0)
    scores, member = draw.integers(0, 20, 300).astype(float), draw.random(300) < 0.3
    assert membership.area(scores, member).value == pytest.approx(roc_auc_score(member, scores))
    false, true = membership.roc_curve(scores, member)
    for values, expected in zip((false, true), roc_curve(member, scores, drop_intermediate=False), strict=False):
        np.testing.assert_allclose(values, expected)


def test_area_of_perfect_scores_is_1_with_a_non_empty_interval():
    area = membership.area(np.repeat([1.0, 0.0], 20), np.arange(40) < 20)
    assert (area.value, area.high) == (1, 1)
    assert 0.85 < area.low < 1


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_area_interval_covers_the_area_of_normal_scores(shift):
    """Scores of members N(shift, 1), of others N(0, 1): the AUC is Phi(shift / sqrt(2))."""
    draw, member = np.random.default_rng(1), np.arange(40) < 20
    areas = [membership.area(draw.normal(shift * member), member) for _ in range(200)]
    covered = np.mean([area.low <= norm.cdf(shift / 2**0.5) <= area.high for area in areas])
    assert covered >= 0.93


def test_area_interval_widens_when_scores_correlate_within_clients():
    """Each client's members score higher or lower together: samples alone would claim too much."""
    draw = np.random.default_rng(2)
    client, member = np.repeat(np.arange(20), 20), np.tile(np.arange(20) < 10, 20)
    covered = {True: 0, False: 0}
    for _ in range(100):
        scores = draw.normal(size=400) + member * draw.normal(size=20)[client]
        for knows in covered:
            area = membership.area(scores, member, client if knows else None)
            covered[knows] += area.low <= 0.5 <= area.high
    assert covered[True] >= 88
    assert covered[False] < 75


def test_area_interval_of_few_clients_matches_a_hand_computed_one():
    """Three clients of unequal size widen an interval by the ratio of the variances with and without them."""
    scores = np.asarray([5.0, 3.0, 4.0, 1.0, 2.0, 0.0, 6.0, 2.5, 3.5])
    member = np.asarray([1, 1, 0, 1, 0, 0, 1, 1, 0], bool)
    client = np.asarray([0, 0, 0, 0, 1, 1, 1, 2, 2])
    lower = np.asarray([[s > other for other in scores[~member]] for s in scores[member]])
    value = lower.mean()
    placed = np.empty(9)
    placed[member], placed[~member] = lower.mean(axis=1), lower.mean(axis=0)
    # Obuchowski: the sum of each client's deviations, those of members and of others over their numbers, squared.
    sums = [
        (placed - value)[member & (client == c)].sum() / 5 + (placed - value)[~member & (client == c)].sum() / 4
        for c in range(3)
    ]
    clustered = 3 / 2 * np.square(sums).sum()
    independent = np.square(placed - value)[member].sum() / 5**2 + np.square(placed - value)[~member].sum() / 4**2
    effect = clustered / independent
    assert effect > 1
    area = membership.area(scores, member, client)
    assert area.value == pytest.approx(value)
    # At both ends the area lies 1.96 standard deviations away, by the variance of Hanley and McNeil.
    for end in (area.low, area.high):
        half = (5 / effect + 4 / effect) / 2 - 1
        spread = end * (1 - end) * (1 + half * ((1 - end) / (2 - end) + end / (1 + end))) / (5 * 4 / effect**2)
        assert abs(end - value) / np.sqrt(spread) == pytest.approx(membership.Z)


def test_true_positive_rate_matches_hand_computed_values():
    """Of 100 non-members one may be above the threshold: members above the second highest of them are recognized."""
    others = np.arange(100.0)
    scores, member = np.concatenate([others, [98.5, 98.0, 200.0, 97.5]]), np.arange(104) >= 100
    rate = membership.true_positive_rate(scores, member, 0.01)
    assert rate.value == 0.5  # 98.5 and 200 exceed 98; a tie does not
    assert rate.low < 0.5 < rate.high
    assert membership.true_positive_rate(scores, member, 0.001) is None
    assert membership.true_positive_rate(scores[:50], member[:50], 0.01) is None
    most = membership.true_positive_rate(scores, member, 1.0)
    assert (most.value, most.high) == (1, 1)


def test_scaled_logits_match_hand_computed_values_and_are_finite():
    p = np.asarray([[0.75, 0.25], [1.0, 0.0], [1.0, 1e-12], [0.0, 0.0]], np.float32)
    logits = membership.scaled_logits(p, np.zeros(4, np.int64))
    assert logits[0] == pytest.approx(np.log(3))
    assert np.isfinite(logits).all()
    assert logits[1] > logits[2] > logits[0]  # 1 - p is 0 in float32 for both
    assert logits[3] == 0


def test_likelihood_ratio_matches_a_hand_computed_value():
    """Two models each: in 2 +- 1, out 0 +- 1, all variances 2, widened by 1 + 1/2 to 3."""
    references = np.asarray([[3.0], [1.0], [1.0], [-1.0]])
    learned = np.asarray([[True], [True], [False], [False]])
    [ratio] = membership.likelihood_ratios(np.asarray([2.0]), references, learned)
    assert ratio == pytest.approx((0 - (2 - 2) ** 2 + (2 - 0) ** 2) / 6)


def test_likelihood_ratio_detects_members_that_confidence_misses():
    """Samples differ more in difficulty than membership changes them: reference models know how difficult each is."""
    draw = np.random.default_rng(3)
    n, count = 600, 16
    difficulty, learned, member = draw.normal(0, 4, n), draw.random((count, n)) < 0.5, draw.random(n) < 0.5
    scores = difficulty + 1.5 * member + draw.normal(0, 0.7, n)
    references = difficulty + 1.5 * learned + draw.normal(0, 0.7, (count, n))
    plain = membership.area(scores, member).value
    ratio = membership.area(membership.likelihood_ratios(scores, references, learned), member).value
    assert plain < 0.65
    assert ratio > 0.9
    unlearned = membership.likelihood_ratios(scores, references, np.zeros_like(learned))
    assert np.isfinite(unlearned).all()


def test_balance_members_makes_membership_independent_of_the_client():
    client = np.repeat([0, 1, 2], [12, 8, 5])
    member = np.concatenate([np.arange(12) < 9, np.arange(8) < 2, np.zeros(5, bool)])
    draws = [(np.flatnonzero(client == number), np.random.default_rng(number)) for number in range(3)]
    rows = membership.balance_members(member, draws)
    assert [int((client[rows] == number).sum()) for number in range(3)] == [6, 4, 0]
    assert member[rows].sum() == 5
    assert membership.area(client[rows].astype(float), member[rows]).value == 0.5
