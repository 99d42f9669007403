"""Thresholds of prediction sets: by hand, at the edges, and coverage in simulations."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from pflcli.core.errors import UsageError
from pflcli.evaluation.metrics import conformal
from pflcli.evaluation.metrics.conformal import RULES, find_thresholds


def make_offsets(*sizes):
    return np.cumsum([0, *sizes])


def test_find_thresholds_matches_hand_computed_thresholds():
    # At 75 %, alpha is 1/4: three samples are enough for an own threshold, and others count as eight samples.
    assert (conformal.fewest_samples(0.75), conformal.pseudo_count(0.75)) == (3, 8)
    scores = np.asarray([0.3, 0.1, 0.2, 0.9, 0.8])
    own = find_thresholds(scores, make_offsets(3, 2), 0.75, "own")
    assert own.tolist() == [0.3, math.inf]  # ceil(4 * 3/4) = 3rd of three, and ceil(3 * 3/4) = 3rd of two
    assert find_thresholds(scores, make_offsets(3, 2), 0.75, "pooled").tolist() == [
        0.9,
        0.9,
    ]  # ceil(6 * 3/4) = 5th of five
    # Eight pseudo-samples are more than the others are: each counts as one, as in the pooled threshold.
    assert find_thresholds(scores, make_offsets(3, 2), 0.75, "shrunk").tolist() == [0.9, 0.9]


def test_shrunk_threshold_matches_a_hand_computed_one():
    # At 50 %, others count as four samples. The first client has 0.1 and 0.2, the other one 0.3, 0.4, ..., 1.0: each
    # of these eight weighs 1/2. Needed are (2 + 4 + 1) / 2 = 3.5: two own samples and three others, up to 0.5.
    scores = np.asarray([0.2, 0.1, *np.arange(3, 11) / 10])
    assert conformal.pseudo_count(0.5) == 4
    first, second = find_thresholds(scores, make_offsets(2, 8), 0.5, "shrunk")
    assert first == 0.5
    # The two others weigh 1 each: needed are (8 + 2 + 1) / 2 = 5.5, 0.1 and 0.2 and four of its own.
    assert second == 0.6
    own, pooled = (find_thresholds(scores, make_offsets(2, 8), 0.5, rule)[0] for rule in ("own", "pooled"))
    assert (own, pooled) == (0.2, 0.6)  # the shrunk threshold is between them


def test_shrunk_threshold_is_the_lowest_score_with_enough_weight():
    rng = np.random.default_rng(3)
    for coverage in (0.5, 0.8, 0.9, 0.95) * 8:
        at = make_offsets(*rng.integers(0, 40, rng.integers(1, 5)))
        scores = np.round(rng.random(at[-1]), 2)  # with ties
        found = find_thresholds(scores, at, coverage, "shrunk")
        for client, (first, last) in enumerate(itertools.pairwise(at)):
            own, others = scores[first:last], np.concatenate([scores[:first], scores[last:]])
            weight = min(1, Fraction(conformal.pseudo_count(coverage), len(others))) if len(others) else 0
            needed = Fraction(str(coverage)) * (len(own) + weight * len(others) + 1)
            enough = [t for t in scores if int((own <= t).sum()) + weight * int((others <= t).sum()) >= needed]
            assert found[client] == min(enough, default=math.inf)


def test_ranks_are_exact_for_decimal_coverages():
    # 0.55 * 100 is 55.00000000000001 in floating point, so that its ceiling would be 56.
    scores = np.arange(1, 100) / 100
    assert find_thresholds(scores, make_offsets(99), 0.55, "own").tolist() == [0.55]
    # And 1 / (1 - 0.9) is 10.000000000000002, so that ten samples would be the fewest.
    assert [conformal.fewest_samples(c) for c in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]
    assert [conformal.pseudo_count(c) for c in (0.5, 0.8, 0.9, 0.95, 0.99)] == [4, 10, 20, 40, 200]


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_own_threshold_is_infinite_with_too_few_samples(coverage):
    fewest = conformal.fewest_samples(coverage)
    scores = np.linspace(0.1, 0.9, 2 * fewest - 1)
    few, enough = find_thresholds(scores, make_offsets(fewest - 1, fewest), coverage, "own")
    assert (few, enough) == (math.inf, scores[-1])


def test_find_thresholds_handles_clients_with_at_most_one_sample():
    scores = np.asarray([0.4, *np.linspace(0, 1, 50)])
    at = make_offsets(0, 1, 50)
    assert find_thresholds(scores, at, 0.9, "own")[:2].tolist() == [math.inf, math.inf]
    assert np.isfinite(find_thresholds(scores, at, 0.9, "shrunk")).all()
    assert np.ptp(find_thresholds(scores, at, 0.9, "pooled")) == 0
    for rule in RULES:
        assert find_thresholds(np.empty(0), make_offsets(0, 0), 0.9, rule).tolist() == [math.inf, math.inf]
        assert find_thresholds(np.empty(0), make_offsets(), 0.9, rule).tolist() == []


@pytest.mark.parametrize("rule", RULES)
def test_threshold_includes_equal_scores(rule):
    at = make_offsets(20, 30)
    assert find_thresholds(np.full(50, 0.25), at, 0.9, rule).tolist() == [0.25, 0.25]
    p = np.asarray([[0.75, 0.25], [0.25, 0.75]], np.float32)
    assert conformal.score_labels(p, np.asarray([0, 0])).tolist() == [0.25, 0.75]
    assert conformal.build_sets(p, 0.25).tolist() == [[True, False], [False, True]]


def test_build_sets_includes_classes_up_to_the_threshold_and_the_predicted_one():
    p = np.asarray([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.4, 0.35, 0.25]], np.float32)
    assert conformal.build_sets(p, np.asarray([0.7, 0.7, np.inf])).tolist() == [
        [True, bool(1 - float(np.float32(0.3)) <= 0.7), False], [True, True, False], [True, True, True],
    ]  # fmt: skip
    # No score is within the threshold: the predicted class alone, which need not be the first of equal ones.
    assert conformal.build_sets(p, 0.1).tolist() == [[True, False, False]] * 3
    assert conformal.build_sets(p, 0.1, np.asarray([0, 1, 0]))[1].tolist() == [False, True, False]


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf])
def test_find_thresholds_refuses_a_coverage_outside_0_to_1(coverage):
    with pytest.raises(UsageError, match="is not between 0 and 1"):
        find_thresholds(np.zeros(3), make_offsets(3), coverage, "own")


def test_find_thresholds_refuses_an_unknown_rule():
    with pytest.raises(UsageError, match="unknown --threshold 'polled'") as error:
        find_thresholds(np.zeros(3), make_offsets(3), 0.9, "polled")
    assert "pooled" in str(error.value.fix)


def draw_predictions(rng, sizes, sharpness, classes=5):
    """Labels and a model's probabilities, for clients whose model is more or less sharp."""
    logits = rng.normal(size=(sum(sizes), classes)) * np.repeat(sharpness, sizes)[:, None]
    odds = np.exp(logits + rng.normal(size=logits.shape))
    truth = odds / odds.sum(axis=1, keepdims=True)
    y = (truth.cumsum(axis=1) < rng.random((len(truth), 1))).sum(axis=1)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return p.astype(np.float32), np.minimum(y, classes - 1)


def simulate_coverage(rng, sizes, sharpness, coverage, rule, repetitions, tested):
    """Return by repetition whether the set of a test sample of client ``tested`` (one, or drawn) has its label."""
    hits = np.empty(repetitions, bool)
    at = make_offsets(*sizes)
    for number in range(repetitions):
        p, y = draw_predictions(rng, sizes, sharpness)
        threshold = find_thresholds(conformal.score_labels(p, y), at, coverage, rule)
        client = tested(rng)
        one = np.zeros(len(sizes), int)
        one[client] = 1
        p, y = draw_predictions(rng, one, sharpness)
        hits[number] = conformal.score_labels(p, y)[0] <= threshold[client]
    return hits


def assert_coverage(hits, coverage, most):
    """Assert that a count of independent hits fits a probability from ``coverage`` to ``most`` (each side: 1e-4)."""
    count = int(hits.sum())
    assert binom.cdf(count, len(hits), coverage) > 1e-4, f"{hits.mean():.3f} is below {coverage}"
    assert binom.sf(count - 1, len(hits), most) > 1e-4, f"{hits.mean():.3f} is above {most}"


REPETITIONS = 3000


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_own_thresholds_cover_each_client_independently_of_the_others(coverage):
    # Between (1 - alpha) and (1 - alpha) + 1 / (n + 1), for samples that are exchangeable within the client.
    sizes, sharpness = [24, 40, 60], np.asarray([0.3, 1.0, 4.0])
    for client in (0, 2):
        rng = np.random.default_rng([client, int(100 * coverage)])
        hits = simulate_coverage(rng, sizes, sharpness, coverage, "own", REPETITIONS, lambda rng, client=client: client)
        assert_coverage(hits, coverage, coverage + 1 / (sizes[client] + 1))


def simulate_mixture_coverage(rng, coverage, rule, repetitions, clients=6, samples=60):
    """As ``covered``, where all samples, of validation and the test one, are drawn from a mixture of clients."""
    sharpness = np.linspace(0.3, 4, clients)
    hits = np.empty(repetitions, bool)
    for number in range(repetitions):
        who = np.sort(rng.integers(clients, size=samples))
        sizes = np.bincount(who, minlength=clients)
        p, y = draw_predictions(rng, sizes, sharpness)
        client = int(rng.integers(clients))
        threshold = find_thresholds(conformal.score_labels(p, y), make_offsets(*sizes), coverage, rule)[client]
        one = np.zeros(clients, int)
        one[client] = 1
        hits[number] = conformal.score_labels(*draw_predictions(rng, one, sharpness))[0] <= threshold
    return hits


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_pooled_threshold_covers_the_mixture_of_clients(coverage):
    hits = simulate_mixture_coverage(np.random.default_rng(int(100 * coverage)), coverage, "pooled", REPETITIONS)
    assert_coverage(hits, coverage, coverage + 1 / 61)


def test_pooled_threshold_does_not_cover_every_client():
    # The reason for the others: the client with the worst model is covered less, and the simulation would see that.
    sharpness = np.asarray([0.3, 4.0, 4.0, 4.0])
    hits = simulate_coverage(np.random.default_rng(1), [20] * 4, sharpness, 0.8, "pooled", REPETITIONS, lambda rng: 0)
    assert binom.cdf(int(hits.sum()), len(hits), 0.8) < 1e-6


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_shrunk_thresholds_cover_each_client_of_equal_distribution(coverage):
    # Scores of all clients are exchangeable. Above the level by at most the greatest weight of one score.
    sizes = [6, 30, 30, 30]
    hits = simulate_coverage(
        np.random.default_rng(7), sizes, np.ones(4), coverage, "shrunk", REPETITIONS, lambda rng: 0
    )
    assert_coverage(hits, coverage, coverage + 1 / (6 + conformal.pseudo_count(coverage) + 1))


def test_shrunk_thresholds_lose_at_most_the_weight_of_the_other_clients():
    # Clients are not alike. The bound of Barber et al. is with the total variation between a client and the others,
    # which is at most 1: the loss is at most the others' share of the weight, and less than with the pooled threshold.
    sizes, sharpness = [60, 60, 60, 60], np.asarray([0.3, 4.0, 4.0, 4.0])
    rng = np.random.default_rng(5)
    shrunk, pooled = (
        simulate_coverage(rng, sizes, sharpness, 0.8, rule, REPETITIONS, lambda rng: 0) for rule in ("shrunk", "pooled")
    )
    share = conformal.pseudo_count(0.8) / (60 + conformal.pseudo_count(0.8) + 1)
    assert_coverage(shrunk, 0.8 - share, 0.8 + 1 / 71)
    assert shrunk.mean() > pooled.mean() + 0.1


@pytest.mark.parametrize(("n", "tried"), [(20, 1), (20, 5), (20, 20), (100, 20)])
def test_least_coverage_bounds_the_coverage_after_choosing_a_model(n, tried):
    """Of independent models, take the one whose sets cover least: no rule of choice can do worse."""
    rng = np.random.default_rng(0)
    rank = math.ceil((n + 1) * 0.9 - 1e-9)
    coverage = np.sort(rng.random((4000, tried, n)), axis=2)[:, :, rank - 1].min(axis=1)  # scores are uniform
    error = coverage.std() / math.sqrt(len(coverage))
    bound = conformal.least_coverage(0.9, n, tried)
    assert bound <= coverage.mean() + 4 * error
    assert bound > coverage.mean() - 0.025  # the union bound loses little
    if tried == 1:
        assert bound == pytest.approx(rank / (n + 1), abs=1e-4)


def test_least_coverage_is_1_when_the_threshold_is_infinite():
    assert conformal.least_coverage(0.9, 8, 100) == 1
    assert conformal.least_coverage(0.9, 9, 100) < 0.9
