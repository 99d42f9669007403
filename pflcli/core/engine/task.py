"""What models learn to predict: the size of their output, its loss, its prediction, and the score of a prediction.

The engine and methods ask the ``task`` of a federation, and assume nothing else about outputs and labels. Another kind
of task is another class with the members of ``Task``. A task is sent to workers with batches, so it must be picklable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.core.errors import InputError

CLASSES = "classes"
"""The kind of ``Classification``."""


class Task(Protocol):
    """What a federation's models learn to predict of a sample."""

    kind: ClassVar[str]
    """what labels are; metrics are defined for labels of one kind, and methods say which kinds they learn"""
    score: ClassVar[str]
    """what messages call the mean of ``scores``"""

    @property
    def outputs(self) -> int:
        """The size of a model's output."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs, if they are known."""

    @property
    def unit(self) -> str:
        """The unit of labels; empty if they have none."""

    def check(self, where: str, y: NDArray[Any]) -> NDArray[Any]:
        """Return labels (n,) in the type that losses take; raises InputError for a label that is none."""

    def describe(self, y: NDArray[Any]) -> dict[str, float]:
        """Return facts about labels (n,), by the headings under which tables show them."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the losses (n,) of outputs (n, C), differentiable."""

    def mean_losses(
        self, outputs: Tensor, y: Tensor, weight: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (a,) of outputs (a, n, C) with sample weights ``weight`` (a, n), and their gradients.

        The gradients are multiplied by ``scale``, a number or (a,).
        """

    def predict(self, outputs: Tensor) -> NDArray[np.float32]:
        """Return the predictions (n, C) of outputs (n, C)."""

    def default(self) -> NDArray[np.float32]:
        """Return the prediction (C,) of a client whose model failed."""

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the losses (n,) of predictions (n, C), each with an upper bound, which limits outliers."""

    def scores(self, p: NDArray[np.float32], y: NDArray[Any]) -> NDArray[Any]:
        """Return the scores (n,) of predictions (n, C), by whose mean on validation samples rounds are chosen.

        It is what ``rounds.csv`` has as accuracy.
        """


@dataclass(frozen=True)
class Classification:
    """Predict one of ``outputs`` classes: outputs are logits, labels are numbers of classes, the loss is cross-entropy.

    Predictions are probabilities.
    """

    kind: ClassVar[str] = CLASSES
    score: ClassVar[str] = "accuracy"

    outputs: int
    names: tuple[str, ...] = ()
    unit: str = ""

    def check(self, where: str, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return labels as int64; raises InputError for one outside 0 to C - 1."""
        bad = np.flatnonzero((y < 0) | (y >= self.outputs))
        if len(bad):
            raise InputError(f"{where}: row {bad[0]} has label {y[bad[0]]}, outside 0..{self.outputs - 1}")
        return y.astype(np.int64, copy=False)

    def describe(self, y: NDArray[np.int64]) -> dict[str, float]:
        """Return the number of classes that occur."""
        return {CLASSES: len(np.unique(y))}

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the losses (n,) of logits (n, C), differentiable."""
        return functional.cross_entropy(logits, y, reduction="none")

    def mean_losses(
        self, logits: Tensor, y: Tensor, weight: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (a,) of logits (a, n, C) with sample weights ``weight`` (a, n), and their gradients.

        The gradients are multiplied by ``scale``, a number or (a,).
        """
        logp, true = torch.log_softmax(logits, dim=2), y[..., None]
        losses = -(logp.gather(2, true)[..., 0] * weight).sum(dim=1)
        grad = logp.exp_().scatter_add_(2, true, torch.full_like(true, -1, dtype=logp.dtype))
        if isinstance(scale, Tensor):
            weight = weight * scale[:, None]
        elif scale != 1.0:
            weight = weight * scale
        return losses, grad.mul_(weight[..., None])

    def predict(self, logits: Tensor) -> NDArray[np.float32]:
        """Return the probabilities (n, C) of logits (n, C), computed in float64 so that rows sum to one."""
        p: NDArray[np.float32] = torch.softmax(logits.double(), dim=1).float().cpu().numpy()
        return p

    def default(self) -> NDArray[np.float32]:
        """Return the same probability (C,) for all classes."""
        return np.full(self.outputs, 1 / self.outputs, np.float32)

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the losses (n,) of predictions (n, C), at most 16, which bounds outliers."""
        return -np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(np.float32).eps, dtype=np.float64))

    def scores(self, p: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,) of the predictions (n, C) that are right."""
        return np.asarray(p.argmax(axis=1) == y)


class _MeanLoss(torch.autograd.Function):
    """``mean_losses`` for autograd, which would otherwise take several passes over the outputs."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, y: Tensor, weight: Tensor, task: Task) -> Tensor:
        """Return the losses (a,)."""
        losses, grad = task.mean_losses(outputs, y, weight)
        ctx.save_for_backward(grad)
        return losses

    @staticmethod
    def backward(ctx: Any, *by_losses: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradients (a, n, C) by the outputs."""
        (grad,) = ctx.saved_tensors
        return grad * by_losses[0][:, None, None], None, None, None


def mean_loss(task: Task, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the losses (a,) of ``task.mean_losses``, differentiable."""
    return cast("Tensor", _MeanLoss.apply(outputs, y, weight, task))  # type: ignore[no-untyped-call]
