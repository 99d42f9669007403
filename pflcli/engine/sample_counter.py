"""Counts the samples that go through models: what training and prediction cost on any machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.local_sgd import LocalSGD, steps_per_epoch


@dataclass
class Passes:
    """Samples that went through a model, each counted as often as it did."""

    trained: float = 0
    """samples of local steps, forward and backward, each as often as ``LocalSGD.passes`` says; forward alone is 1/3"""
    predicted: int = 0
    """samples that were predicted or embedded: forward alone"""


def trained_samples(plan: LocalSGD, sizes: NDArray[np.int64], *, join_single: bool) -> NDArray[np.int64]:
    """Return how many samples go through the local steps of clients (m,) that have ``sizes`` (m,) samples."""
    steps = steps_per_epoch(sizes, plan.batch_size, join_single=join_single)
    per_epoch = sizes
    if plan.batches is not None:
        per_epoch = np.where(steps <= plan.batches, sizes, np.minimum(sizes, plan.batches * plan.batch_size))
        steps = np.minimum(steps, plan.batches)
    if plan.steps is None:
        return np.asarray(plan.epochs * per_epoch)
    epochs, rest = np.divmod(plan.steps, np.maximum(steps, 1))
    return np.asarray(np.where(sizes > 0, epochs * per_epoch + np.minimum(rest * plan.batch_size, per_epoch), 0))
