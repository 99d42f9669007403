"""Quantile: models predict quantiles of a number, by the quantile loss.

The loss of the quantile q for an error e, label minus prediction, is q e above the prediction and (q - 1) e below it
(Koenker & Bassett, 1978, https://doi.org/10.2307/1913643). Like other losses of a quantity, it is that of standardized
labels. A model has an output for each quantile, and its predictions are these outputs in ascending order, so that
quantiles do not cross; this never increases the loss (Chernozhukov, Fernández-Val & Galichon, 2010,
https://doi.org/10.3982/ECTA7880).

It is a task of its own beside ``quantity``: predictions are several numbers, which a method for one number, such as a
mean of neighbours, does not give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pflcli.core.engine.tasks import Task
from pflcli.core.engine.tasks.quantity import MAX_LOSS, Quantity
from pflcli.core.errors import UsageError
from pflcli.core.metrics.metric import LABEL_UNIT, ranking

if TYPE_CHECKING:
    from torch import Tensor

    from pflcli.core.metrics.metric import Array

METRICS = ("quantile_loss", "mae", "rmse", "r2")
_EXAMPLE = "--task quantile:0.1,0.5,0.9"


def quantile_losses(p: Array, y: Array, task: Quantile) -> Array:
    """Return the mean loss (n,) of the predicted quantiles (n, C) of each sample."""
    error, level = y[:, None] - p.astype(np.float64), np.asarray(task.quantiles)
    return np.asarray(np.maximum(level * error, (level - 1) * error).mean(axis=1))


ENTRIES = ranking(
    "quantile_loss", "quantile loss", unit=LABEL_UNIT, percent=False, lower_is_better=True, per_sample=quantile_losses,
    reads_task=True,
)  # fmt: skip


@dataclass(frozen=True)
class Quantile(Quantity):
    """Predict ``quantiles``, ascending; ``at`` are those of training labels, and ``spread`` is the loss of these."""

    kind: ClassVar[str] = "quantile"
    score: ClassVar[str] = "explained quantile loss"
    formula: ClassVar[str] = "the outputs, multiplied by the deviation of labels, plus their mean, in ascending order"

    loss: str = "quantile"
    quantiles: tuple[float, ...] = (0.5,)
    at: tuple[float, ...] = (0.0,)
    spread: float = 1.0

    @classmethod
    def from_word(cls, option: str, unit: str) -> Self:
        """Return the task of ``--task quantile:option``, where the option is quantiles separated by commas."""
        try:
            quantiles = tuple(sorted({float(word) for word in option.split(",")}))
        except ValueError:
            raise UsageError(f"--task quantile:{option} names no quantiles", _EXAMPLE) from None
        for quantile in quantiles:
            if not 0 < quantile < 1:
                raise UsageError(f"--task quantile:{option}: {quantile:g} is not between 0 and 1", _EXAMPLE)
        return cls(len(quantiles), unit=unit, quantiles=quantiles, at=(0.0,) * len(quantiles))

    def fitted(self, y: NDArray[Any]) -> Self:
        """Return the task with the mean, deviation, quantiles and spread of training labels ``y`` (n,)."""
        if not len(y):
            return self
        at = np.quantile(y, self.quantiles)
        spread = float(quantile_losses(at[None], y, self).mean()) or 1.0
        return replace(super().fitted(y), at=tuple(at.tolist()), spread=spread)

    def fitted_to_moments(self, mean: float, deviation: float) -> Self:
        """Raise UnsuitedError: the quantiles of labels do not follow from their mean and deviation."""
        return Task.fitted_to_moments(self, mean, deviation)

    def moved(self, shift: float, scale: float) -> Self:
        """Return the task of the labels ``shift + scale * y``."""
        at = tuple(shift + scale * each for each in self.at)
        return replace(super().moved(shift, scale), at=at, spread=scale * self.spread)

    def _errors(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return standardized labels (..., n) minus outputs (..., n, C), and the slope of the loss by these errors."""
        level = outputs.new_tensor(self.quantiles)
        errors = ((y - self.mean) / self.deviation).to(outputs.dtype)[..., None] - outputs
        return errors, level - (errors < 0).to(outputs.dtype)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the losses (n,) of outputs (n, C), which are standardized predictions."""
        errors, slopes = self._errors(outputs, y)
        return (errors * slopes).mean(dim=1)

    def mean_losses(
        self, outputs: Tensor, y: Tensor, weight: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (a,) of outputs (a, n, C) with sample weights ``weight`` (a, n), and their gradients."""
        errors, slopes = self._errors(outputs, y)
        factor = weight * (scale if isinstance(scale, int | float) else scale[:, None])
        return ((errors * slopes).mean(dim=2) * weight).sum(dim=1), slopes * (-factor / self.outputs)[..., None]

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the quantiles (n, C) in ascending order, in the unit of labels."""
        return super().activate(outputs).sort(dim=1).values

    def tabulate(self, p: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return a column (n,) for each quantile, such as ``prediction(0.9)``."""
        return {f"prediction({quantile:g})": p[:, at] for at, quantile in enumerate(self.quantiles)}

    def score_at(self, target: float) -> float:
        """Return the mean score of samples with the quantile loss ``target``."""
        return 1 - target / self.spread

    def link(self, p: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Raise UnsuitedError: the quantile loss has no second derivative, by which stacks are fitted."""
        return Task.link(self, p)

    def point(self, p: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the predicted medians (n,); raises UsageError if the median is not among the quantiles."""
        if 0.5 not in self.quantiles:
            known = ", ".join(f"{quantile:g}" for quantile in self.quantiles)
            raise UsageError(
                f"MAE, RMSE and R² are those of the median, and the quantiles are {known}",
                "--metric quantile_loss, or import again with 0.5 among the quantiles of --task",
            )
        return p[:, self.quantiles.index(0.5)].astype(np.float64)

    def bounds(self, p: NDArray[np.float32], level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the predicted quantiles (n,) nearest to (1 - level) / 2 and (1 + level) / 2."""
        quantiles = np.asarray(self.quantiles)
        low, high = (int(np.abs(quantiles - (1 + sign * level) / 2).argmin()) for sign in (-1, 1))
        return p[:, low].astype(np.float64), p[:, high].astype(np.float64)

    def default(self) -> NDArray[np.float32]:
        """Return the quantiles of training labels, (C,)."""
        return np.asarray(self.at, np.float32)

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the losses (n,), in mean losses of the quantiles of training labels, at most 16."""
        return np.asarray(np.minimum(quantile_losses(p, y, self) / self.spread, MAX_LOSS), np.float64)

    def scores(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return 1 minus the losses (n,), in mean losses of the quantiles of training labels."""
        return np.asarray(1 - quantile_losses(p, y, self) / self.spread, np.float64)


TASK = Quantile
