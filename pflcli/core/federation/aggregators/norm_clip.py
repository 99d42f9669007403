"""The mean of updates that the server clips: an update that is longer than most others is shortened.

Sun et al. (2019), https://arxiv.org/abs/1911.07963, norm thresholding: update * min(1, norm / |update|), with
the Euclidean norm over everything that is uploaded, and then the mean, weighted by samples. By default the norm is the
median over the uploads of the round. It is ``--upload clip`` with a norm that the server computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.core import parameters
from pflcli.core.federation.aggregators import Uploads
from pflcli.core.federation.aggregators._collected import Collected
from pflcli.core.parameters import Params, Stacked


@dataclass(frozen=True)
class Config:
    """The option of clipping."""

    norm: Annotated[float, Ge(0)] = 0.0
    """shorten updates to at most this Euclidean norm; 0 is the median over the uploads of the round"""


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return a collection that averages the clipped uploads."""
    return Collected(partial(_clipped_mean, downloaded, cfg))


def _clipped_mean(
    downloaded: Params, cfg: Config, stacked: Stacked, weights: NDArray[np.float64]
) -> tuple[Params, NDArray[np.float64]]:
    floating = [name for name, value in stacked.items() if value.is_floating_point()]
    norms_by_tensor = [
        torch.linalg.vector_norm(
            (stacked[name] - downloaded[name]).unsqueeze(-1).flatten(1), dim=1, dtype=torch.float64
        )
        for name in floating
    ]
    norms = torch.linalg.vector_norm(torch.stack(norms_by_tensor), dim=0).cpu().numpy()  # (n,)
    bound = cfg.norm or float(np.median(norms))
    factor = np.where(norms > bound, bound / np.where(norms > 0, norms, 1), 1.0)
    clipped = dict(stacked)
    for name in floating:
        value = stacked[name]
        scale = torch.from_numpy(factor).to(value).view(-1, *[1] * (value.ndim - 1))
        update = scale * (value - downloaded[name])
        clipped[name] = torch.where(scale < 1, downloaded[name] + update, value)
    mean = parameters.Mean()
    mean.add(clipped, weights)
    return mean.value(), 1 - factor
