"""What models learn to predict: the size of their output, the loss of an output, and the prediction that it makes.

The engine and methods ask the ``task`` of a federation, and assume nothing else about outputs and labels. Another kind
of task is another class with these members. A task is sent to workers with batches, so it must be picklable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Classification:
    """Predict one of ``outputs`` classes: outputs are logits, labels are numbers of classes, the loss is cross-entropy.

    Predictions are probabilities.
    """

    outputs: int
    """the size of a model's output"""

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

    def bounded_losses(self, p: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the losses (n,) of predictions (n, C), at most 16, which bounds outliers."""
        return -np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(np.float32).eps, dtype=np.float64))

    def is_correct(self, p: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,) of the predictions (n, C) that are right."""
        return np.asarray(p.argmax(axis=1) == y)


class _MeanLoss(torch.autograd.Function):
    """``mean_losses`` for autograd, which would otherwise take several passes over the outputs."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, y: Tensor, weight: Tensor, task: Classification) -> Tensor:
        """Return the losses (a,)."""
        losses, grad = task.mean_losses(outputs, y, weight)
        ctx.save_for_backward(grad)
        return losses

    @staticmethod
    def backward(ctx: Any, *by_losses: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradients (a, n, C) by the outputs."""
        (grad,) = ctx.saved_tensors
        return grad * by_losses[0][:, None, None], None, None, None


def mean_loss(task: Classification, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the losses (a,) of ``task.mean_losses``, differentiable."""
    return cast("Tensor", _MeanLoss.apply(outputs, y, weight, task))  # type: ignore[no-untyped-call]
