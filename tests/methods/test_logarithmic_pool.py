"""The logarithmic pool, against written-out formulas and grid searches, and what must not change it."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest

from pflcli.methods.parts import logarithmic_pool as pool

CLASSES = 3
M = 12


def make_learners(seed=0, samples=9, sharpness=(2.0, 1.0, 0.0)):
    """Answers (n, C) of learners that know the label more or less, of M clients with as many samples each."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, CLASSES, M * samples)
    logits = [draw.normal(size=(len(y), CLASSES)) + sharp * np.eye(CLASSES)[y] for sharp in sharpness]
    answers = [(np.exp(z) / np.exp(z).sum(1, keepdims=True)).astype(np.float32) for z in logits]
    return answers, y, np.arange(0, len(y) + 1, samples)


def pool_literally(answers, b):
    """The pool as its formula has it, sample by sample."""
    rows = []
    for sample in range(len(answers[0])):
        product = np.ones(CLASSES)
        for p, exponent in zip(answers, b, strict=True):
            smooth = (p[sample].astype(np.float64) + 0.01 / CLASSES) / 1.01
            product *= smooth**exponent
        rows.append(product / product.sum())
    return np.stack(rows)


def compute_penalized_loss(answers, y, b, centre, ridge):
    chosen = pool_literally(answers, b)[np.arange(len(y)), y]
    return -np.log(chosen).sum() + ridge / 2 * ((np.asarray(b) - centre) ** 2).sum()


def test_pool_predicts_the_normalized_product_of_powers():
    answers, _, _ = make_learners()
    for b in ([1.0, 0.5, -0.3], [0, 0, 0], [4.0, -3.0, 2.0]):
        actual = pool.predict(pool.log_probabilities(answers), np.asarray(b, float))
        np.testing.assert_allclose(actual, pool_literally(answers, b), atol=1e-5)


def test_fit_exponents_finds_the_minimum_of_a_grid_search():
    answers, y, _ = make_learners(samples=3, sharpness=(2.0, 0.5))
    b = pool.fit_exponents(pool.log_probabilities(answers), y, np.full(2, 0.5), 1.0)
    grid = [(i, j) for i in np.arange(0, 3, 0.2) for j in np.arange(-0.6, 2, 0.2)]
    best = min(grid, key=lambda pair: compute_penalized_loss(answers, y, pair, 0.5, 1.0))
    np.testing.assert_allclose(b, best, atol=0.15)
    assert compute_penalized_loss(answers, y, b, 0.5, 1.0) <= compute_penalized_loss(answers, y, best, 0.5, 1.0)


@pytest.mark.parametrize("ridge", [0.0, 1.0, 100.0])
def test_penalized_loss_gradient_and_hessian_match_finite_differences(ridge, monkeypatch):
    answers, y, _ = make_learners()
    logs, b, centre = pool.log_probabilities(answers), np.asarray([0.7, -0.2, 1.1]), np.full(3, 1 / 3)
    value, slope, bend = pool.penalized_loss(logs, y, b, centre, ridge)
    assert value == pytest.approx(compute_penalized_loss(answers, y, b, centre, ridge), rel=1e-5)
    for at, step in enumerate(1e-5 * np.eye(3)):
        (up, more, _), (down, less, _) = (
            pool.penalized_loss(logs, y, b + move, centre, ridge) for move in (step, -step)
        )
        assert slope[at] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-4)
        np.testing.assert_allclose(bend[at], (more - less) / 2e-5, rtol=1e-5, atol=1e-4)
    fitted = pool.fit_exponents(logs, y, centre, ridge)
    assert np.abs(pool.penalized_loss(logs, y, fitted, centre, ridge)[1]).max() < 1e-5
    monkeypatch.setattr(pool, "_CHUNK_NUMBERS", 50)  # some samples at a time
    np.testing.assert_allclose(pool.penalized_loss(logs, y, b, centre, ridge)[1], slope, rtol=1e-10)


def test_fit_exponents_is_finite_with_zero_probabilities_and_distant_centres():
    answers, y, offsets = make_learners()
    answers.append(np.eye(CLASSES, dtype=np.float32)[(y + 1) % CLASSES])  # sure, and always wrong
    logs = pool.log_probabilities(answers)
    near = pool.fit_exponents(logs, y, np.full(4, 0.25), 1e-3)
    assert np.isfinite(near).all()
    assert near[3] < 0
    far = pool.fit_exponents(logs, y, np.full(4, 50.0), 1e-3)
    assert pool.penalized_loss(logs, y, far, np.full(4, 50.0), 1e-3)[1] == pytest.approx(np.zeros(4), abs=1e-4)
    learned = pool.fit_pool(logs, y, offsets, base=0)
    assert np.isfinite(learned.held_out).all()
    assert pool.predict(pool.log_probabilities([np.eye(CLASSES)] * 2), np.asarray([30.0, -30.0])) == pytest.approx(
        1 / CLASSES
    )


def test_pool_of_one_learner_is_temperature_scaling():
    (sure,), y, offsets = make_learners(sharpness=(0.5,))  # twice as sure as it should be
    learned = pool.fit_pool(pool.log_probabilities([sure]), y, offsets, base=None)
    (b,) = learned.exponents
    grid = np.arange(0.05, 2, 0.05)
    best = min(grid, key=lambda power: compute_penalized_loss([sure], y, [power], 1.0, learned.ridge))
    assert b == pytest.approx(best, abs=0.03)
    assert b < 0.9
    pooled = pool.predict(pool.log_probabilities([sure]), learned.exponents)
    np.testing.assert_array_equal(pooled.argmax(1), sure.argmax(1))


def test_pool_is_independent_of_learner_order_and_duplicates():
    answers, y, offsets = make_learners()
    one = pool.fit_pool(pool.log_probabilities(answers), y, offsets, base=0)
    other = pool.fit_pool(pool.log_probabilities(answers[::-1]), y, offsets, base=2)
    np.testing.assert_allclose(one.exponents, other.exponents[::-1], atol=2e-6)
    np.testing.assert_array_equal(one.kept == pool.POOL, other.kept == pool.POOL)
    even, ridge = np.zeros(3), 1e-6
    once = pool.fit_exponents(pool.log_probabilities(answers), y, even, ridge)
    twice = pool.fit_exponents(pool.log_probabilities([*answers, answers[0]]), y, np.zeros(4), ridge)
    np.testing.assert_allclose([twice[0] + twice[3], *twice[1:3]], once, atol=1e-4)
    assert twice[0] == pytest.approx(twice[3], abs=1e-6)


def test_client_without_gain_keeps_the_base_and_one_without_samples_is_pooled():
    answers, y, offsets = make_learners(samples=12)
    base = np.full_like(answers[0], 0.1 / CLASSES)
    first = np.arange(12)
    base[first, y[first]] += 0.9  # right for the first client alone, for which the others are wrong
    base[12:] = 1 / CLASSES
    for other in answers:
        other[:12] = np.roll(base[:12], 1, axis=1)
    offsets = np.append(offsets, offsets[-1])
    learned = pool.fit_pool(pool.log_probabilities([*answers, base]), y, offsets, base=3)
    assert learned.kept[0] == 3
    assert learned.kept[-1] == pool.POOL
    assert (learned.kept[1:-1] == pool.POOL).mean() > 0.5
    logs = pool.log_probabilities([*answers, base])
    mean = [-np.log(p[first, y[first]]).mean() for p in (learned.held_out, np.exp(logs[:, 3]))]
    assert mean[0] >= mean[1]
    assert pool.fit_pool(logs, y, offsets, base=None).kept.max() == pool.POOL


def test_common_exponents_are_learned_only_from_seen_clients():
    answers, y, offsets = make_learners()
    unseen = np.arange(M) >= 8
    other = y.copy()
    other[offsets[8] :] = (y[offsets[8] :] + 1) % CLASSES
    logs = pool.log_probabilities(answers)
    one, two = (pool.fit_pool(logs, labels, offsets, base=0, unseen=unseen) for labels in (y, other))
    np.testing.assert_array_equal(one.exponents, two.exponents)
    np.testing.assert_array_equal(one.held_out[: offsets[8]], two.held_out[: offsets[8]])
    assert (one.exponents != pool.fit_pool(logs, y, offsets, base=0).exponents).any()


def test_held_out_predictions_use_exponents_learned_without_the_sample(monkeypatch):
    monkeypatch.setattr(pool, "RIDGES", (1.0,))
    answers, y, offsets = make_learners(samples=4)
    logs, before = (
        pool.log_probabilities(answers),
        pool.fit_pool(*[pool.log_probabilities(answers), y, offsets], base=0).held_out,
    )
    for sample in range(4):
        other = y.copy()
        other[sample] = (y[sample] + 1) % CLASSES
        after = pool.fit_pool(logs, other, offsets, base=0).held_out
        np.testing.assert_array_equal(after[sample], before[sample])
        assert (after != before).any()


def test_clients_get_their_own_exponents_when_this_lowers_the_loss():
    answers, y, offsets = make_learners(samples=40, sharpness=(3.0, 0.0))
    half = offsets[M // 2]
    mixed = [np.concatenate([a[:half], b[half:]]) for a, b in (answers, answers[::-1])]
    shared = pool.fit_pool(pool.log_probabilities(mixed), y, offsets, base=0)
    own = pool.fit_pool(pool.log_probabilities(mixed), y, offsets, base=0, own=True)
    assert np.isfinite(own.pull)
    assert own.loss < shared.loss - 0.05
    assert (own.own[: M // 2, 0] > own.own[: M // 2, 1]).all()
    assert (own.own[M // 2 :, 0] < own.own[M // 2 :, 1]).all()
    alike = pool.fit_pool(pool.log_probabilities(answers), y, offsets, base=0, own=True)
    np.testing.assert_allclose(alike.own, np.tile(alike.exponents, (M, 1)), atol=1.0)


def test_fit_pool_is_deterministic_for_a_seed():
    answers, y, offsets = make_learners()
    one, two = (pool.fit_pool(pool.log_probabilities(answers), y, offsets, base=0, own=True, seed=3) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(astuple(one), astuple(two), strict=True))


def test_fit_pool_gives_equal_exponents_when_no_client_has_samples():
    answers, y, _ = make_learners()
    logs = pool.log_probabilities([p[:0] for p in answers])
    learned = pool.fit_pool(logs, y[:0], np.zeros(4, np.int64), base=0)
    np.testing.assert_allclose(learned.exponents, 1 / 3, atol=1e-6)
    assert (learned.kept == pool.POOL).all()


def test_gate_of_a_validation_sample_is_decided_by_the_other_folds():
    """Recompute it from the held-out predictions: the label of a sample does not open the gate for it."""
    answers, y, offsets = make_learners(samples=4, sharpness=(0.4, 0.3, 0.2))
    logs = pool.log_probabilities(answers)
    found = pool.fit_pool(logs, y, offsets, base=0, seed=1)
    fold, gain = pool._draw_folds(offsets, 1), pool._loss(np.exp(logs[:, 0].astype(float)), y)
    gain = gain - pool._loss(found.held_out, y)
    differ = 0
    for client, (first, last) in enumerate(pairwise(offsets)):
        for row in range(first, last):
            others = gain[first:last][fold[first:last] != fold[row]]
            is_pooled = others.sum() > 1e-9 if len(others) else True
            assert found.kept_held_out[row] == (pool.POOL if is_pooled else 0)
            differ += found.kept_held_out[row] != found.kept[client]
    assert differ


def test_no_client_keeps_alone_where_this_does_not_pay_for_all_clients_together(monkeypatch):
    """With two samples, a learner like the others is better than the pool for some clients, by chance."""
    answers, y, offsets = make_learners(samples=2, sharpness=(1, 1, 0.8))
    given = pool.log_probabilities(answers), y, offsets
    found = pool.fit_pool(*given, base=None, alone=2)
    assert (found.kept == pool.POOL).all()
    assert (found.kept_held_out == pool.POOL).all()
    monkeypatch.setattr(pool, "MARGINS", (0.0,))
    assert (pool.fit_pool(*given, base=None, alone=2).kept == 2).sum() == 3


def test_a_client_keeps_the_best_of_two_learners_unless_the_pool_is_better():
    """The first client is served best by the first of both, the second by the other one, and the rest by the pool."""
    answers, y, offsets = make_learners(samples=12)
    first, second = (np.full_like(answers[0], 0.2 / CLASSES) for _ in range(2))
    for number, base in enumerate((first, second)):
        rows = np.arange(12 * number, 12 * (number + 1))
        base[:] = 1 / CLASSES
        base[rows] = 0.1 / CLASSES
        base[rows, y[rows]] += 0.9
    for other in answers:
        other[:24] = np.roll((first * second)[:24], 1, axis=1)
    logs = pool.log_probabilities([*answers, first, second])
    learned = pool.fit_pool(logs, y, offsets, base=3, alone=4)
    assert learned.kept[:2].tolist() == [3, 4]
    assert (learned.kept[2:] == pool.POOL).mean() > 0.5
    assert set(learned.kept_held_out[:12]) == {3}
    losses = [-np.log(np.exp(logs[np.arange(len(y)), at, y])).mean() for at in (3, 4)]
    assert learned.base_losses == pytest.approx(losses)
    same = pool.fit_pool(pool.log_probabilities([*answers, first, first]), y, offsets, base=3, alone=4)
    assert 4 not in same.kept  # of equal ones, the first
