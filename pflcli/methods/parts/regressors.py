"""Models of numbers that are no networks: linear ones, forests and boosting, and a choice, for quantities and counts.

``fit`` trains one of them or, with ``choose``, the linear model and the forest by three-fold cross-validation, of which
it keeps the one with the smaller loss. All are those of scikit-learn (Pedregosa et al., 2011,
https://jmlr.org/papers/v12/pedregosa11a.html), on the features of ``classifiers``. The linear model of a quantity is
ridge regression, whose penalty is the best of ``PENALTIES`` by leave-one-out cross-validation, and that of counts
Poisson regression with the penalty 1 / n, as strong as that of logistic regression. Boosting has the loss of the task.
Quantiles are the prediction of a quantity plus the quantiles of the errors of samples left out in cross-validation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.method import UnsuitedError
from pflcli.methods.parts.classifiers import (
    FOLDS,
    TREES,
    TREES_IN_FOLDS,
    Classifier,
    Predict,
    one_thread,
    read_features,
)

COMPARED = ("linear", "forest")
"""The models to choose from; of equally good ones, the first is chosen."""
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
_LEAST = 1e-6
"""The least expected number of events, whose logarithm is taken."""


def fit(
    samples: NDArray[Any],
    y: NDArray[np.float64],
    default: NDArray[np.float32],
    model: str,
    draw: np.random.Generator,
    *,
    are_counts: bool,
    quantiles: Sequence[float] = (),
) -> Classifier:
    """Train ``model`` on ``samples`` (n, ...) with labels (n,); it returns predictions (n, 1), or ``quantiles`` (n, C).

    With fewer than three samples, or equal labels, their mean is predicted, and without samples the ``default`` (C,).
    Raises UnsuitedError for a classifier, and for boosting with more than a hundred features.
    """
    if model not in ("choose", *COMPARED, "boosting"):
        raise UnsuitedError(f"model={model} learns classes, and labels are numbers", "--set model=linear, or choose")
    read, features = read_features(samples, model)
    with one_thread():
        spread = np.zeros(max(len(quantiles), 1)) if len(y) else default - default[0]
        if model == "choose" or quantiles:
            folds, names = _divide(len(y), draw), COMPARED if model == "choose" else (model,)
            left_out = {name: _cross_validate(name, features, y, folds, draw, are_counts) for name in names}
            model = min(names, key=lambda name: _measure_loss(left_out[name], y, are_counts))
            if quantiles and len(y):
                spread = np.quantile(y - left_out[model], quantiles)
        predict = _fit_known(model, features, y, default, TREES, draw, are_counts)

    def predict_samples(new: NDArray[Any]) -> NDArray[Any]:
        if not len(new):
            return np.zeros((0, len(spread)), np.float32)
        with one_thread():
            return (predict(read(new))[:, None] + spread).astype(np.float32)

    return Classifier(model, predict_samples)


def _divide(n: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return the fold of each of n samples."""
    return draw.permutation(np.arange(n) % FOLDS)


def _cross_validate(
    model: str,
    x: NDArray[Any],
    y: NDArray[np.float64],
    folds: NDArray[np.int64],
    draw: np.random.Generator,
    are_counts: bool,
) -> NDArray[np.float64]:
    """Return the predictions (n,) of samples that are left out of training; the mean of fewer than three labels."""
    p = np.full(len(y), y.mean() if len(y) else 0.0)
    for number in range(FOLDS if len(y) >= FOLDS else 0):
        own = folds != number
        mean = np.full(1, y[own].mean())
        p[~own] = _fit_known(model, x[own], y[own], mean, TREES_IN_FOLDS, draw, are_counts)(x[~own])
    return p


def _measure_loss(p: NDArray[np.float64], y: NDArray[np.float64], are_counts: bool) -> float:
    """Return the loss of predictions (n,): squared error, or the negative log-likelihood; 0 for counts of 0 alone."""
    return float(np.sum(p - y * np.log(np.maximum(p, _LEAST)) if are_counts else (p - y) ** 2))


def _fit_known(
    model: str,
    x: NDArray[Any],
    y: NDArray[np.float64],
    default: NDArray[Any],
    trees: int,
    draw: np.random.Generator,
    are_counts: bool,
) -> Predict:
    """Train on samples of different labels; else return what predicts their mean, or the ``default`` (1,)."""
    seed = int(draw.integers(2**31))
    if len(y) < FOLDS or (y == y[0]).all():
        value = float(y.mean()) if len(y) else float(default[0])
        return lambda new: np.full(len(new), value)
    made = _make(model, trees, seed, len(y), are_counts).fit(x, y)
    predict: Callable[[NDArray[Any]], NDArray[Any]] = made.predict
    return (lambda new: np.maximum(predict(new), _LEAST)) if are_counts else predict


def _make(model: str, trees: int, seed: int, n: int, are_counts: bool) -> Any:
    """Return the untrained model for ``n`` samples."""
    if model == "linear":
        from sklearn.linear_model import PoissonRegressor, RidgeCV

        return PoissonRegressor(alpha=1 / n, max_iter=300) if are_counts else RidgeCV(PENALTIES)
    if model == "forest":
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(trees, max_features=1 / 3, random_state=seed)
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        loss="poisson" if are_counts else "squared_error",
        max_iter=50,
        min_samples_leaf=min(20, max(2, n // 20)),
        early_stopping=False,
        random_state=seed,
    )
