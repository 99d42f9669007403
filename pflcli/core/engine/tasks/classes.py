"""Classes: models predict the probabilities of classes, by cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pflcli.core.engine.tasks import Task
from pflcli.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

METRICS = (
    "accuracy", "auroc", "average_precision", "f1", "balanced_accuracy", "sensitivity", "specificity", "brier_score",
    "log_loss",
)  # fmt: skip


@dataclass(frozen=True)
class Classification(Task):
    """Predict one of ``outputs`` classes: outputs are logits, labels are numbers of classes, the loss is cross-entropy.

    Predictions are probabilities.
    """

    kind: ClassVar[str] = "classes"
    score: ClassVar[str] = "accuracy"
    formula: ClassVar[str] = "softmax of the logits"

    def check(self, where: str, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return labels as int64; raises InputError for one outside 0 to C - 1."""
        bad = np.flatnonzero((y < 0) | (y >= self.outputs))
        if len(bad):
            raise InputError(f"{where}: row {bad[0]} has label {y[bad[0]]}, outside 0..{self.outputs - 1}")
        return y.astype(np.int64, copy=False)

    def describe(self, y: NDArray[np.int64]) -> dict[str, float]:
        """Return the number of classes that occur."""
        return {self.kind: len(np.unique(y))}

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the losses (n,) of logits (n, C), differentiable."""
        from torch.nn import functional

        return functional.cross_entropy(logits, y, reduction="none")

    def mean_losses(
        self, logits: Tensor, y: Tensor, weight: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (a,) of logits (a, n, C) with sample weights ``weight`` (a, n), and their gradients.

        The gradients are multiplied by ``scale``, a number or (a,).
        """
        import torch

        logp, true = torch.log_softmax(logits, dim=2), y[..., None]
        losses = -(logp.gather(2, true)[..., 0] * weight).sum(dim=1)
        grad = logp.exp_().scatter_add_(2, true, torch.full_like(true, -1, dtype=logp.dtype))
        if isinstance(scale, torch.Tensor):
            weight = weight * scale[:, None]
        elif scale != 1.0:
            weight = weight * scale
        return losses, grad.mul_(weight[..., None])

    def activate(self, logits: Tensor) -> Tensor:
        """Return the probabilities (n, C) of logits (n, C); in float64, rows sum to one."""
        return logits.softmax(dim=1)

    def tabulate(self, p: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return no columns: tables have the probability of each class by its name."""
        return {}

    def default(self) -> NDArray[np.float32]:
        """Return the same probability (C,) for all classes."""
        return np.full(self.outputs, 1 / self.outputs, np.float32)

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the losses (n,) of predictions (n, C), at most 16, which bounds outliers."""
        return -np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(np.float32).eps, dtype=np.float64))

    def scores(self, p: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,) of the predictions (n, C) that are right."""
        return np.asarray(p.argmax(axis=1) == y)


TASK = Classification
