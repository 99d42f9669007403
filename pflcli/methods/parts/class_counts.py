"""Counts the samples that clients have of each class, and estimates the class frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Run

_MIN_FREQUENCY = 1e-6
"""Minimum frequency of a class."""


def training_counts(run: Run, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each client's training samples of each class, (m, C)."""
    y = run.federation.y
    counts = [
        np.bincount(y[run.federation.block(int(client), "train")].cpu().numpy(), minlength=run.federation.classes)
        for client in clients
    ]
    return np.asarray(counts, dtype=np.int64).reshape(len(clients), run.federation.classes)


def shrunk_prior(
    run: Run, clients: NDArray[np.int64], prior: Tensor, kappa: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what ``shrink_counts`` returns for the classes of the clients' training samples."""
    return shrink_counts(training_counts(run, clients), prior, kappa)


def shrink_counts(
    samples: NDArray[np.int64], prior: Tensor, kappa: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the class frequencies of all clients (C,), which are ``prior`` without zeros, and of each client (m, C).

    The latter are those of their ``samples`` (m, C), shrunk towards those of all clients, which count for ``kappa``
    samples.
    """
    common = np.maximum(prior.cpu().double().numpy(), _MIN_FREQUENCY)
    common /= common.sum()
    counts = samples.astype(np.float64)
    # A client without samples, or kappa of zero, leaves nothing to divide by.
    shrunk = (counts + kappa * common) / np.maximum(counts.sum(axis=1, keepdims=True) + kappa, _MIN_FREQUENCY)
    own = np.where(counts.sum(axis=1, keepdims=True) + kappa > 0, np.maximum(shrunk, _MIN_FREQUENCY), common)
    return common, own / own.sum(axis=1, keepdims=True)
