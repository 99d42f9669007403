"""Means of representations by class, which clients compute of their training samples."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Run, Stacked


def class_means(run: Run, clients: NDArray[np.int64], models: Stacked) -> tuple[Tensor, NDArray[np.float64]]:
    """Return the mean representation of each class of each client (m, C, d), and the samples that each is of (m, C).

    Representations are those of training samples, by each client's own model. The mean without samples is zero.
    """
    means, counts = [], []
    outputs = run.engine.outputs_each(clients, models, "train", features=True)
    for client, (_, z) in zip(clients, outputs, strict=True):
        y = run.federation.y[run.federation.block(int(client), "train")]
        n = torch.bincount(y, minlength=run.federation.classes)
        total = z.new_zeros(run.federation.classes, z.shape[1], dtype=torch.float64).index_add_(0, y, z.double())
        means.append((total / n.clamp(min=1)[:, None]).float())
        counts.append(n.cpu().numpy().astype(np.float64))
    return torch.stack(means), np.stack(counts)
