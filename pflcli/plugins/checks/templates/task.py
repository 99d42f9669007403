"""TITLE: ordered grades, from 0 to a highest one, by the probabilities of more than each grade.

Replace this text by what models learn to predict, and by its source: here McCullagh (1980),
https://doi.org/10.1111/j.2517-6161.1980.tb01109.x, with a probability of each threshold of its own. ``pfl check FILE``
tests the laws that every task satisfies, and ``pfl --use FILE`` makes it known to a command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.core.engine.tasks import Task
from pflcli.core.metrics.metric import ranking

METRICS = ("STEM_steps_off",)
"""The metrics by which methods are ranked, the first by default."""


def count_steps(p: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Return by how many grades predictions (n, C) are off, (n,): the grade is the number of likely thresholds."""
    return np.asarray(np.abs((p > 0.5).sum(axis=1) - y))


ENTRIES = ranking(METRICS[0], "steps off", unit="steps", percent=False, lower_is_better=True, per_sample=count_steps)
"""The metrics that no other file has."""


@dataclass(frozen=True)
class Grades(Task):
    """Predict a grade from 0 to ``outputs``: outputs are the logits of more than each grade but the highest."""

    kind: ClassVar[str] = "STEM"
    score: ClassVar[str] = "closeness"

    outputs: int = 4

    @classmethod
    def from_word(cls, option: str, unit: str) -> Self:
        """Return the task of ``--task STEM:4``, with the highest grade 4."""
        return cls(int(option or 4), unit=unit)

    def find_invalid(self, y: NDArray[np.float64]) -> tuple[int, str] | None:
        """Return the row of the first label that is no grade, and what is wrong with it."""
        bad = np.flatnonzero(~np.isin(y, range(self.outputs + 1)))
        return (int(bad[0]), f"is no grade from 0 to {self.outputs}") if len(bad) else None

    def describe(self, y: NDArray[Any]) -> dict[str, float]:
        """Return the mean grade."""
        return {"mean grade": float(y.mean()) if len(y) else np.nan}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of all thresholds, (n,), for outputs (n, C)."""
        above = (y[:, None] > y.new_tensor(range(self.outputs))).to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs, above, reduction="none").sum(dim=1)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probabilities (n, C) of more than each grade."""
        return outputs.sigmoid()

    def default(self) -> NDArray[np.float32]:
        """Return the probabilities (C,) of a client whose model failed."""
        return np.full(self.outputs, 0.5, np.float32)

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the steps off (n,), which are at most C."""
        return count_steps(p, y).astype(np.float64)

    def scores(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[Any]:
        """Return 1 minus the steps off (n,), as a share of all."""
        return 1 - count_steps(p, y) / self.outputs


TASK = Grades
