"""Quantity: models predict a number, by squared, absolute or Huber loss.

Losses are those of labels standardized by the mean and deviation of all training samples, so that settings such as the
learning rate do not depend on the unit. Predictions, and so all scores, are in the unit of the labels.

The Huber loss (Huber, 1964, https://doi.org/10.1214/aoms/1177703732) is half the squared error up to a deviation, and
linear beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pflcli.core.engine.tasks import ClientScales, Task, has_scale
from pflcli.core.errors import UsageError, closest
from pflcli.core.metrics.metric import LABEL_UNIT, ranking

if TYPE_CHECKING:
    from torch import Tensor

    from pflcli.core.metrics.metric import Array

METRICS = ("rmse", "mae", "r2")
LOSSES = ("squared", "absolute", "huber")
MAX_LOSS = 16.0
"""The bound of a loss for clients that compare models: an error of four deviations."""


def rmse(p: Array, y: Array, task: Task) -> float:
    """Return the root of the mean squared error of predictions (n, C); nan without samples."""
    return float(np.sqrt(np.mean(absolute_errors(p, y, task) ** 2))) if len(y) else float("nan")


def absolute_errors(p: Array, y: Array, task: Task) -> Array:
    """Return the absolute errors (n,) of predictions (n, C)."""
    return np.abs(task.point(p) - y)


def r2(p: Array, y: Array, task: Task) -> float:
    """Return 1 minus the ratio of the squared errors to those of the mean label; nan if all labels are the same."""
    spread = float(np.sum((y - np.mean(y)) ** 2)) if len(y) else 0.0
    return 1 - float(np.sum(absolute_errors(p, y, task) ** 2)) / spread if spread else float("nan")


_FORM: dict[str, Any] = {"percent": False, "reads_task": True}
ENTRIES = [
    *ranking("rmse", "RMSE", unit=LABEL_UNIT, lower_is_better=True, formula=rmse, **_FORM),
    *ranking("mae", "MAE", unit=LABEL_UNIT, lower_is_better=True, per_sample=absolute_errors, **_FORM),
    *ranking("r2", "R²", unit="", formula=r2, needs="samples with different labels", **_FORM),
]


@dataclass(frozen=True)
class Quantity(Task):
    """Predict a number; losses are standardized by the ``mean`` and ``deviation`` of training labels."""

    kind: ClassVar[str] = "quantity"
    score: ClassVar[str] = "R²"
    formula: ClassVar[str] = "the output, multiplied by the deviation of labels, plus their mean"
    has_intervals: ClassVar[bool] = True
    FITTED: ClassVar[tuple[str, ...]] = ("mean", "deviation")

    loss: str = "squared"
    mean: float = 0.0
    deviation: float = 1.0
    by_client: bool = False

    @classmethod
    def from_word(cls, option: str, unit: str) -> Self:
        """Return the task of ``--task quantity:option``, where the option is one of ``LOSSES``."""
        if option and option not in LOSSES:
            raise UsageError(
                f"--task quantity:{option}: unknown loss '{option}'", closest(option, LOSSES), "--task quantile:0.9"
            )
        return cls(unit=unit, loss=option or "squared")

    @property
    def word(self) -> str:
        """The word by which ``--task`` names it, with the loss unless it is the squared one."""
        return self.kind if self.loss == "squared" else f"{self.kind}:{self.loss}"

    @property
    def size(self) -> float:
        """The deviation of labels, or their mean if it is larger."""
        return max(self.deviation, abs(self.mean))

    def fitted(self, y: NDArray[Any]) -> Self:
        """Return the task with the mean and deviation of training labels ``y`` (n,)."""
        if not len(y):
            return self
        return replace(self, mean=float(y.mean()), deviation=float(y.std()) or 1.0)

    def fitted_to_moments(self, mean: float, deviation: float) -> Self:
        """Return the task for training labels with this mean and deviation."""
        return replace(self, mean=mean, deviation=deviation or 1.0)

    def fitted_by_client(self, labels: Sequence[NDArray[Any]]) -> Self:
        """Return the task for the training labels (n,) of each client that trains a global model.

        If labels are standardized by client, ``deviation`` is that from the mean of the same client, so that scores
        compare with these means.
        """
        task, own = super().fitted_by_client(labels), [y for y in labels if has_scale(y)]
        if not (self.by_client and own):
            return task
        within = float(np.sqrt(np.average([y.var() for y in own], weights=[*map(len, own)])))
        scales = ClientScales.fit(replace(task, deviation=within), labels)
        owner = np.repeat(np.arange(len(labels)), [*map(len, labels)])
        known = self.fitted(scales.standardize(np.concatenate(labels), owner))
        return replace(known.moved(task.mean, within), mean=task.mean, deviation=within)

    def scaled_by_client(self) -> Self:
        """Return the task whose labels are standardized by client."""
        return replace(self, by_client=True)

    def moved(self, shift: float, scale: float) -> Self:
        """Return the task of the labels ``shift + scale * y``."""
        return replace(self, mean=shift + scale * self.mean, deviation=scale * self.deviation)

    def describe(self, y: NDArray[Any]) -> dict[str, float]:
        """Return the mean and the standard deviation; nan without labels."""
        return {"mean": float(y.mean()), "sd": float(y.std())} if len(y) else dict.fromkeys(("mean", "sd"), np.nan)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the losses (n,) of outputs (n, 1), which are standardized predictions."""
        error = outputs[:, 0] - ((y - self.mean) / self.deviation).to(outputs.dtype)
        if self.loss == "squared":
            return error**2
        if self.loss == "absolute":
            return error.abs()
        near = error.clamp(-1, 1)
        return near * (error - near / 2)

    def mean_losses(
        self, outputs: Tensor, y: Tensor, weight: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (a,) of outputs (a, n, 1) with sample weights ``weight`` (a, n), and their gradients."""
        each = self.losses(outputs.flatten(0, 1), y.flatten()).view(weight.shape)
        error = outputs[..., 0] - ((y - self.mean) / self.deviation).to(outputs.dtype)
        slope = 2 * error if self.loss == "squared" else error.sign() if self.loss == "absolute" else error.clamp(-1, 1)
        factor = weight * (scale if isinstance(scale, int | float) else scale[:, None])
        return (each * weight).sum(dim=1), (slope * factor)[..., None]

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the predictions (n, 1) of outputs (n, 1), in the unit of labels."""
        return outputs * self.deviation + self.mean

    def score_at(self, target: float) -> float:
        """Return the mean score of samples with the RMSE ``target``."""
        return 1 - (target / self.deviation) ** 2

    def link(self, p: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the outputs (n,) of predictions (n, 1)."""
        return (p[:, 0].astype(np.float64) - self.mean) / self.deviation

    def curve(
        self, outputs: NDArray[np.float64], y: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the squared errors (n,) in deviations, and their first and second derivatives by the outputs."""
        error = outputs - (y - self.mean) / self.deviation
        return error**2, 2 * error, np.full_like(error, 2)

    def default(self) -> NDArray[np.float32]:
        """Return the mean training label, (1,)."""
        return np.full(1, self.mean, np.float32)

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the squared errors (n,) in deviations, at most 16."""
        return np.asarray(np.minimum((absolute_errors(p, y, self) / self.deviation) ** 2, MAX_LOSS), np.float64)

    def scores(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return 1 minus the squared errors (n,) in deviations: their mean is R² against the mean training label."""
        return np.asarray(1 - (absolute_errors(p, y, self) / self.deviation) ** 2, np.float64)


TASK = Quantity
