"""Scores for two and for unbalanced classes, by hand and against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn

from pflcli.core import scores
from pflcli.core.metrics import catalogue, classification

P = np.asarray([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.6, 0.4], [0.2, 0.8]])
Y = np.asarray([0, 0, 0, 1, 1])


def test_scores_of_two_classes_match_hand_computed_values():
    """Of 2 x 3 pairs the ill patient has the higher probability in 1 + 3 and the same in 1."""
    assert classification.auroc(P, Y) == pytest.approx((1 + 0.5 + 3) / 6)
    # Thresholds .8: 1 of 1, recall 1/2; .7: no more; .4: 2 of 4, recall 1.
    assert classification.average_precision(P, Y) == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 4)
    assert classification.sensitivity(P, Y) == 1 / 2
    assert classification.specificity(P, Y) == pytest.approx(2 / 3)
    assert classification.balanced_accuracy(P, Y) == pytest.approx((1 / 2 + 2 / 3) / 2)
    # Two negatives right, one false alarm, one missed; one positive right.
    assert classification.f1(P, Y) == pytest.approx((4 / (4 + 1 + 1) + 2 / (2 + 1 + 1)) / 2)
    np.testing.assert_allclose(classification.brier_score(P, Y), [0.01, 0.16, 0.49, 0.36, 0.04])


def test_brier_score_of_three_classes_matches_a_hand_computed_value():
    actual = classification.brier_score(np.asarray([[0.5, 0.3, 0.2]]), np.asarray([1]))
    np.testing.assert_allclose(actual, [0.25 + 0.49 + 0.04])


def draw_predictions(classes, seed):
    """Answers to a few samples, in tenths, so that many are tied; every class occurs."""
    draw = np.random.default_rng(seed)
    y = np.append(np.arange(classes), draw.integers(classes, size=25))
    p = draw.multinomial(10, np.full(classes, 1 / classes), size=len(y)) / 10
    return p.astype(np.float32), y


def average_over_classes(score, p, y):
    return np.mean([score(y == c, p[:, c]) for c in np.unique(y)])


REFERENCES = {
    "auroc": lambda p, y: average_over_classes(sklearn.roc_auc_score, p, y),
    "average_precision": lambda p, y: average_over_classes(sklearn.average_precision_score, p, y),
    "f1": lambda p, y: sklearn.f1_score(y, p.argmax(1), average="macro"),
    "balanced_accuracy": lambda p, y: sklearn.balanced_accuracy_score(y, p.argmax(1)),
    "accuracy": lambda p, y: sklearn.accuracy_score(y, p.argmax(1)),
    "log_loss": lambda p, y: sklearn.log_loss(y, p, labels=np.arange(p.shape[1])),
    "brier_score": lambda p, y: ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean(),
    "macro_precision": lambda p, y: sklearn.precision_score(y, p.argmax(1), average="macro", zero_division=0),
}
OF_TWO = {
    "auroc": lambda p, y: sklearn.roc_auc_score(y, p[:, 1]),
    "average_precision": lambda p, y: sklearn.average_precision_score(y, p[:, 1]),
    "sensitivity": lambda p, y: sklearn.recall_score(y, p.argmax(1)),
    "specificity": lambda p, y: sklearn.recall_score(y, p.argmax(1), pos_label=0),
    "brier_score": lambda p, y: sklearn.brier_score_loss(y, p[:, 1]),
}


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_scores_equal_scikit_learn(classes):
    for seed in range(20):
        p, y = draw_predictions(classes, seed)
        p = (p + 0.01) / (p + 0.01).sum(axis=1, keepdims=True)  # a log-loss of 0 depends on where it is cut
        for name, reference in {**REFERENCES, **(OF_TWO if classes == 2 else {})}.items():
            actual = catalogue.METRICS[name].score_clients(p, y, np.asarray([0, len(y)]))
            assert actual == pytest.approx([reference(p, y)], abs=1e-6), name


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_scores_average_only_over_classes_that_occur():
    p, y = draw_predictions(7, 0)
    occurring = np.isin(y, [1, 4, 6])
    p, y = p[occurring], y[occurring]
    for name in ("auroc", "average_precision", "f1", "balanced_accuracy"):
        assert getattr(classification, name)(p, y) == pytest.approx(REFERENCES[name](p, y)), name


@pytest.mark.parametrize("label", [0, 1])
def test_scores_are_nan_when_a_class_is_missing(label):
    """One that has samples of one class only is no worse for it: the score is not defined."""
    p, y = P[label:], np.full(len(P) - label, label)
    for name in ("auroc", "average_precision", "f1", "balanced_accuracy"):
        assert math.isnan(getattr(classification, name)(p, y)), name
    assert math.isnan(classification.sensitivity(p, y)) == (label == 0)
    assert math.isnan(classification.specificity(p, y)) == (label == 1)
    assert np.isfinite(classification.brier_score(p, y)).all()


def test_scores_over_clients_match_hand_computed_values():
    values, n = np.asarray([0.2, np.nan, 0.6, 0.1]), np.asarray([1, 5, 3, 0])
    parts = {part: catalogue.METRICS[f"brier_score_{part}"] for part in ("mean", "bottom_decile", "worst")}
    actual = {part: entry.score_run({"brier_score": values}, n, {}) for part, entry in parts.items()}
    assert actual == {"mean": pytest.approx(0.3), "bottom_decile": 0.6, "worst": 0.6}  # the highest error is the worst
    assert catalogue.METRICS["brier_score"].score_run({"brier_score": values}, n, {}) == pytest.approx(0.5)
    assert catalogue.METRICS["auroc_worst"].score_run({"auroc": values}, n, {}) == 0.1
    assert math.isnan(catalogue.METRICS["auroc_mean"].score_run({"auroc": values * np.nan}, n, {}))
    assert scores.weighted_mean(values, n) == pytest.approx(0.5)
