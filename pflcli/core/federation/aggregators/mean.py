"""The mean of uploads, weighted by the clients' training samples, as in FedAvg.

McMahan et al. (2017), https://arxiv.org/abs/1602.05629, Algorithm 1. A method may use other weights. Integer buffers,
such as the number of batches in batch normalization, take the largest value.
"""

from __future__ import annotations

from dataclasses import dataclass

from pflcli.core.federation.aggregators import Uploads
from pflcli.core.parameters import Mean, Params

SEPARABLE = True


@dataclass(frozen=True)
class Config:
    """No options."""


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty mean."""
    return Mean()
