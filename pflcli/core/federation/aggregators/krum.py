"""Multi-Krum: the mean of the uploads that have the nearest neighbours; the others are left out.

Blanchard et al. (2017), https://arxiv.org/abs/1703.02757: of n uploads, f of which may be poisoned, the score of one is
the sum of its squared distances to the n - f - 2 nearest others. Krum takes the upload with the lowest score,
multi-Krum the mean of several. The mean is weighted by samples; scores are not. The paper has no guarantee for
n < 2 f + 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from pflcli.core import parameters
from pflcli.core.federation.aggregators import Uploads
from pflcli.core.federation.aggregators._collected import Collected
from pflcli.core.parameters import Params, Stacked


@dataclass(frozen=True)
class Config:
    """Options of multi-Krum."""

    poisoned: Annotated[float, Ge(0), Lt(0.5)] = 0.25
    """expect this share of the uploads to be poisoned (f of n), from 0 to below 0.5, rounded up"""
    keep: Annotated[int, Ge(0)] = 0
    """average this many uploads; 1 is Krum, 0 is n - f: all but the expected number of poisoned ones"""


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return a collection that averages the uploads with the lowest scores."""
    return Collected(partial(_multi_krum, cfg))


def _multi_krum(cfg: Config, stacked: Stacked, weights: NDArray[np.float64]) -> tuple[Params, NDArray[np.float64]]:
    n = len(weights)
    poisoned = math.ceil(cfg.poisoned * n)
    squared = np.sort(squared_distances(stacked), axis=1)[:, 1:]  # without the distance to itself
    scores = squared[:, : max(1, n - poisoned - 2)].sum(axis=1)
    chosen = np.sort(np.argsort(scores, kind="stable")[: min(cfg.keep, n) or max(1, n - poisoned)])
    mean = parameters.Mean()
    mean.add(parameters.take(stacked, chosen) if len(chosen) < n else stacked, weights[chosen])
    return mean.value(), (~np.isin(np.arange(n), chosen)).astype(np.float64)


def squared_distances(stacked: Stacked) -> NDArray[np.float64]:
    """Return the squared Euclidean distances (n, n) of uploads (n, ...) over all floating-point tensors."""
    flat = [value.unsqueeze(-1).flatten(1) for value in stacked.values() if value.is_floating_point()]
    n = len(next(iter(stacked.values())))
    total = torch.zeros(n, n, dtype=torch.float64)
    for row in range(n):  # subtract first: inner products lose the digits of small distances
        for value in flat:
            difference = value[row + 1 :] - value[row]
            total[row, row + 1 :] += torch.linalg.vector_norm(difference, dim=1, dtype=torch.float64).square().cpu()
    return np.asarray(total + total.T)
