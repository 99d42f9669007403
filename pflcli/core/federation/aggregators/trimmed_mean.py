"""The coordinate-wise trimmed mean of uploads: the largest and the smallest values are left out.

Yin et al. (2018), https://arxiv.org/abs/1803.01498, Definition 2 and Algorithm 1, option II. All uploads have the same
weight, since clients report their own numbers of samples.
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
from torch import Tensor

from pflcli.core.federation.aggregators import Uploads
from pflcli.core.federation.aggregators._collected import Collected, combine_by_coordinate
from pflcli.core.parameters import Params, Stacked


@dataclass(frozen=True)
class Config:
    """The option of the trimmed mean."""

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.25
    """leave out this share of the uploads at either end, from 0 to below 0.5, rounded up; at least one remains"""


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return a collection that computes the trimmed mean of the uploads."""
    return Collected(partial(_trimmed_mean, cfg))


def _trimmed_mean(cfg: Config, stacked: Stacked, weights: NDArray[np.float64]) -> tuple[Params, NDArray[np.float64]]:
    trimmed = min(math.ceil(cfg.share * len(weights)), (len(weights) - 1) // 2)
    return combine_by_coordinate(stacked, partial(_inner_mean, trimmed=trimmed))


def _inner_mean(numbers: Tensor, trimmed: int) -> tuple[Tensor, Tensor]:
    inner = numbers[trimmed : len(numbers) - trimmed]
    return inner.mean(dim=0), torch.stack([inner[0], inner[-1]])
