"""Classifiers that are no networks: logistic regression, linear discriminant analysis, forests, boosting, and a choice.

``fit`` trains one of them or, with ``choose``, the first three by stratified cross-validation, of which it keeps the
one that is right most often. Trees, boosting and the solver of logistic regression are those of scikit-learn (Pedregosa
et al., 2011, https://jmlr.org/papers/v12/pedregosa11a.html).

- Features are the pixels of an image, divided by 255; standardized features; or how often a sample has each token,
  standardized. Means and deviations are those of the samples in training.
- Both linear classifiers depend on samples only by their inner products. With fewer samples than features they are
  therefore trained in the span of the samples, in as many dimensions as there are samples, with the same result.
- ``lda`` shrinks the covariance within classes towards a multiple of the identity, by the formula of Ledoit & Wolf
  (2004), https://doi.org/10.1016/S0047-259X(03)00096-4, as `LinearDiscriminantAnalysis(solver="lsqr")` does by a given
  shrinkage.
- A class gets at least a probability of about 1e-6, whether it was in training or not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.method import UnsuitedError

Array = NDArray[Any]
Predict = Callable[[Array], Array]
"""Returns probabilities (n, C) of samples or features (n, ...)."""

COMPARED = ("logistic", "lda", "forest")
"""The classifiers to choose from; of equally good ones, the first is chosen."""
FOLDS = 3
TREES, TREES_IN_FOLDS = 100, 30
MAX_BOOSTED_FEATURES = 100
"""The most features for boosting: it takes minutes for pixels, where forests are as good."""
_MIN_PROBABILITY = 1e-6
_MAX_DEVIATION = 1e6
"""Standardized features are cut here, so that all are numbers in single precision."""


@dataclass(frozen=True)
class Classifier:
    """A trained classifier, by the name of the ``model`` that was asked for or chosen, and what it predicts."""

    model: str
    predict: Predict

    def __call__(self, samples: Array) -> Array:
        """Return probabilities (n, C) of samples (n, ...)."""
        return self.predict(samples)


def record_choices(
    fitted: Sequence[Classifier], model: str, compared: Sequence[str] = COMPARED
) -> dict[str, NDArray[np.float64]]:
    """Return for each model to choose from whether each client (m,) took it, 1 or 0; nothing if one was named."""
    if model != "choose":
        return {}
    return {name: np.asarray([float(each.model == name) for each in fitted]) for name in compared}


def fit(samples: Array, y: NDArray[np.int64], classes: int, model: str, draw: np.random.Generator) -> Classifier:
    """Train ``model`` on ``samples`` (n, ...), which are uint8 images, float32 features or tokens, with labels (n,).

    With a single class this class is predicted, and without samples all classes are equally likely. Raises
    UnsuitedError for boosting with more than a hundred features.
    """
    read, features = read_features(samples, model)
    rotate, scale = _span(features), 0.1 if samples.dtype == np.uint8 else 1.0
    train: dict[str, Callable[..., Predict]] = {
        "logistic": partial(_fit_logistic, scale=scale),
        "lda": partial(_fit_lda, columns=features.shape[1]),
        "forest": _fit_forest,
        "boosting": _fit_boosting,
    }
    inputs = dict.fromkeys(train, features) | dict.fromkeys(("logistic", "lda"), rotate(features))
    with one_thread():
        if model == "choose":
            right = {name: _cross_validate(train[name], inputs[name], y, classes, draw) for name in COMPARED}
            model = max(right, key=lambda name: right[name])
        predict = _fit_known(train[model], inputs[model], y, classes, TREES, draw)

    def predict_samples(new: Array) -> Array:
        if not len(new):
            return np.zeros((0, classes), np.float32)
        x = read(new)
        with one_thread():
            p = predict(rotate(x) if model in ("logistic", "lda") else x)
        return ((p + _MIN_PROBABILITY) / (1 + classes * _MIN_PROBABILITY)).astype(np.float32)

    return Classifier(model, predict_samples)


def read_features(samples: Array, model: str) -> tuple[Callable[[Array], Array], Array]:
    """Return what reads the features of further samples, and the features (n, d) of ``samples``.

    Raises UnsuitedError for boosting with more than a hundred features.
    """
    read = learn_features(samples)
    features = read(samples)
    if model == "boosting" and features.shape[1] > MAX_BOOSTED_FEATURES:
        raise UnsuitedError(
            f"model=boosting is for at most {MAX_BOOSTED_FEATURES} features, and a sample has {features.shape[1]}",
            "--set model=choose, or forest",
        )
    return read, features


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute by one thread, so that sums have one order, and without scikit-learn's warnings and checks of inputs."""
    import sklearn
    from threadpoolctl import threadpool_limits

    unchecked = sklearn.config_context(assume_finite=True, skip_parameter_validation=True)
    with threadpool_limits(1), unchecked, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _cross_validate(
    train: Callable[..., Predict], x: Array, y: NDArray[np.int64], classes: int, draw: np.random.Generator
) -> int:
    """Return how many of the samples are right when they are left out of training, a third at a time.

    Each class is dealt to the thirds in turn. With fewer samples than thirds nothing is compared.
    """
    if len(y) < FOLDS:
        return 0
    order = draw.permutation(len(y))
    fold = np.empty(len(y), np.int64)
    fold[order[np.argsort(y[order], kind="stable")]] = np.arange(len(y)) % FOLDS
    right = 0
    for number in range(FOLDS):
        own = fold != number
        predict = _fit_known(train, x[own], y[own], classes, TREES_IN_FOLDS, draw)
        right += int((predict(x[~own]).argmax(axis=1) == y[~own]).sum())
    return right


def _fit_known(
    train: Callable[..., Predict], x: Array, y: NDArray[np.int64], classes: int, trees: int, draw: np.random.Generator
) -> Predict:
    """Train on the classes that are there; return a function of features that gives the other classes 0."""
    known, label = np.unique(y, return_inverse=True)
    if len(known) < 2:
        p = np.eye(classes)[known[0]] if len(known) else np.full(classes, 1 / classes)
        return lambda new: np.tile(p, (len(new), 1))
    predict = train(x, label, trees=trees, seed=int(draw.integers(2**31)))

    def predict_all(new: Array) -> Array:
        p = np.zeros((len(new), classes))
        p[:, known] = predict(new)
        return p

    return predict_all


# Features


def learn_features(samples: Array) -> Callable[[Array], Array]:
    """Return a function of samples (n, ...) that returns their features (n, d), by what is known from ``samples``."""
    if samples.dtype == np.uint8:
        return lambda new: new.reshape(len(new), -1).astype(np.float32) / 255
    read = _flatten if samples.dtype == np.float32 else partial(_count_tokens, np.unique(samples))
    known = read(samples)
    if not len(known):
        return read
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    deviation[deviation == 0] = 1
    return lambda new: np.clip((read(new) - mean) / deviation, -_MAX_DEVIATION, _MAX_DEVIATION)


def _flatten(samples: Array) -> Array:
    return samples.reshape(len(samples), int(np.prod(samples.shape[1:]))).astype(np.float64)


def _count_tokens(known: Array, samples: Array) -> Array:
    """Return how often each sample (n, L) has each of the ``known`` tokens (v,), as (n, v)."""
    tokens = samples.reshape(len(samples), -1)
    counts = np.zeros((len(tokens), len(known)))
    place = np.minimum(np.searchsorted(known, tokens), max(len(known) - 1, 0))
    row, column = np.nonzero(known[place] == tokens) if len(known) else np.zeros((2, 0), np.int64)
    np.add.at(counts, (row, place[row, column]), 1)
    return counts


def _span(features: Array) -> Callable[[Array], Array]:
    """Return a rotation of features (n, d) into the span of ``features``, if these are fewer than dimensions."""
    if len(features) >= features.shape[1]:
        return lambda new: new
    mean = features.mean(axis=0) if len(features) else np.zeros(features.shape[1])
    basis = np.linalg.qr((features - mean).T.astype(np.float64))[0]
    return lambda new: np.asarray((new - mean) @ basis)


# Classifiers: each returns a function of features (n, d) that returns probabilities (n, classes in training)


def _fit_logistic(x: Array, y: NDArray[np.int64], scale: float, seed: int, **_: int) -> Predict:
    """Fit logistic regression, whose inverse strength of regularization is ``scale``."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=scale, max_iter=300).fit(x, y).predict_proba  # type: ignore[no-any-return]


def _fit_forest(x: Array, y: NDArray[np.int64], trees: int, seed: int) -> Predict:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(trees, random_state=seed).fit(x, y).predict_proba  # type: ignore[no-any-return]


def _fit_boosting(x: Array, y: NDArray[np.int64], seed: int, **_: int) -> Predict:
    """Fit fifty rounds of gradient boosting, whose leaves have fewer samples where there are few in all."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    leaf = min(20, max(2, len(y) // 20))
    boosting = HistGradientBoostingClassifier(
        max_iter=50, min_samples_leaf=leaf, early_stopping=False, random_state=seed
    )
    return boosting.fit(x, y).predict_proba  # type: ignore[no-any-return]


def _fit_lda(x: Array, y: NDArray[np.int64], columns: int, **_: int) -> Predict:
    """Fit Gaussians with one covariance; ``x`` may be samples of so many ``columns`` in their span."""
    x, number = x.astype(np.float64), np.bincount(y)
    means = np.stack([x[y == label].mean(axis=0) for label in range(len(number))])
    rest = x - means[y]
    covariance = rest.T @ rest / len(y)
    variance = np.trace(covariance) / columns
    if variance == 0:  # no class has two different samples: the nearest mean
        covariance, variance = np.eye(x.shape[1]), 1.0
    shrinkage = max(shrink(rest, columns), _MIN_PROBABILITY)
    covariance = (1 - shrinkage) * covariance + shrinkage * variance * np.eye(x.shape[1])
    weights = np.linalg.solve(covariance, means.T)  # (d, C)
    bias = np.log(number / len(y)) - (means * weights.T).sum(axis=1) / 2

    def predict(new: Array) -> Array:
        logits = new @ weights + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    return predict


def shrink(x: Array, columns: int) -> float:
    """Return Ledoit and Wolf's shrinkage of the covariance of centred ``x`` (n, d), samples of ``columns`` features."""
    squares, moment = np.square(x).sum(axis=1), x.T @ x / len(x)
    of_moment, mean = np.square(moment).sum(), squares.mean() / columns
    spread = of_moment - columns * mean**2
    error = (np.square(squares).mean() - of_moment) / len(x)
    return float(min(error, spread) / spread) if spread > 0 else 0.0
