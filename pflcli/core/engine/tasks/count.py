"""Count: models predict the expected number of events, by the likelihood of Poisson's distribution.

A model's output is the logarithm of the expected number, divided by the mean of all training samples. Predictions, and
so all scores, are numbers of events. The deviance is twice the logarithm of how much likelier the labels are if each is
expected (McCullagh & Nelder, Generalized Linear Models, 1989, section 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pflcli.core.engine.tasks import Task
from pflcli.core.metrics.metric import ranking

if TYPE_CHECKING:
    from torch import Tensor

    from pflcli.core.metrics.metric import Array

METRICS = ("poisson_deviance", "mae", "rmse")
_LEAST = 1e-6
"""The least expected number in a deviance, which is infinite for an event where none is expected."""
_MAX_LOSS = 16.0
_SMOOTHING, _MAX_OUTPUT = 0.01, 30.0
"""What ``link`` adds in means, and the largest output in ``curve``, whose exponential is finite."""


def deviances(p: Array, y: Array) -> Array:
    """Return the deviance (n,) of each label from the expected numbers (n, 1); zero if they are equal."""
    expected, y = np.maximum(p[:, 0].astype(np.float64), _LEAST), np.asarray(y, np.float64)
    ratio = np.divide(y, expected, out=np.ones_like(expected), where=y > 0)
    return np.asarray(2 * (y * np.log(ratio) - (y - expected)))


ENTRIES = [
    *ranking(
        "poisson_deviance", "Poisson deviance", unit="deviance", percent=False, lower_is_better=True,
        per_sample=deviances,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Count(Task):
    """Predict a number of events; ``mean`` is that of the training labels, ``deviance`` their mean deviance from it."""

    kind: ClassVar[str] = "count"
    score: ClassVar[str] = "explained deviance"
    formula: ClassVar[str] = "exp of the output, multiplied by the mean label"
    has_intervals: ClassVar[bool] = True
    least: ClassVar[float] = 0.0
    FITTED: ClassVar[tuple[str, ...]] = ("mean", "deviance")

    mean: float = 1.0
    deviance: float = 1.0

    def find_invalid(self, y: NDArray[np.float64]) -> tuple[int, str] | None:
        """Return the row of the first label that is not a whole number from 0, and what is wrong with it."""
        bad = np.flatnonzero(~(np.isfinite(y) & (y >= 0) & (y == np.floor(y))))
        return (int(bad[0]), "is not a whole number from 0") if len(bad) else None

    @property
    def size(self) -> float:
        """The mean label, at least 1."""
        return max(self.mean, 1.0)

    def fitted(self, y: NDArray[Any]) -> Self:
        """Return the task with the mean and deviance of training labels ``y`` (n,)."""
        if not len(y) or not (mean := float(y.mean())):
            return self
        return replace(self, mean=mean, deviance=float(deviances(np.full((len(y), 1), mean), y).mean()) or 1.0)

    def fitted_to_moments(self, mean: float, deviation: float) -> Self:
        """Return the task for training labels with this mean and deviation.

        The deviance is estimated by Pearson's statistic, the variance divided by the mean, which is near it if counts
        are not small (McCullagh & Nelder, 1989, section 2.3). Scores alone depend on it, models do not.
        """
        return replace(self, mean=mean, deviance=deviation**2 / mean or 1.0) if mean else self

    def describe(self, y: NDArray[Any]) -> dict[str, float]:
        """Return the mean; nan without labels."""
        return {"mean": float(y.mean()) if len(y) else np.nan}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the negative log-likelihoods (n,) of outputs (n, 1), up to a constant and divided by the mean."""
        log_ratio = outputs[:, 0]
        return log_ratio.exp() - (y / self.mean).to(outputs.dtype) * log_ratio

    def mean_losses(
        self, outputs: Tensor, y: Tensor, weight: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (a,) of outputs (a, n, 1) with sample weights ``weight`` (a, n), and their gradients."""
        ratio, label = outputs[..., 0].exp(), (y / self.mean).to(outputs.dtype)
        factor = weight * (scale if isinstance(scale, int | float) else scale[:, None])
        return ((ratio - label * outputs[..., 0]) * weight).sum(dim=1), ((ratio - label) * factor)[..., None]

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the expected numbers (n, 1) of outputs (n, 1)."""
        return outputs.exp() * self.mean

    def score_at(self, target: float) -> float:
        """Return the mean score of samples with the mean Poisson deviance ``target``."""
        return 1 - target / self.deviance

    def link(self, p: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the outputs (n,) of expected numbers (n, 1), to which a hundredth of the mean is added against 0."""
        return np.asarray(np.log((p[:, 0].astype(np.float64) / self.mean + _SMOOTHING) / (1 + _SMOOTHING)))

    def curve(
        self, outputs: NDArray[np.float64], y: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the relative deviances (n,), see ``scores``, and their first and second derivatives by the outputs."""
        ratio, factor = np.exp(np.minimum(outputs, _MAX_OUTPUT)), 2 * self.mean / self.deviance
        losses = deviances(self.mean * ratio[:, None], y) / self.deviance
        return losses, factor * (ratio - y / self.mean), factor * ratio

    def default(self) -> NDArray[np.float32]:
        """Return the mean training label, (1,)."""
        return np.full(1, self.mean, np.float32)

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the deviances (n,), in mean deviances of the training labels, at most 16."""
        return np.asarray(np.minimum(deviances(p, y) / self.deviance, _MAX_LOSS), np.float64)

    def scores(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return 1 minus the deviances (n,), in mean deviances of the training labels."""
        return np.asarray(1 - deviances(p, y) / self.deviance, np.float64)


TASK = Count
