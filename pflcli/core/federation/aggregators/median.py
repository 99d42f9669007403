"""The coordinate-wise median of uploads: an attacker must poison half of the clients to control it.

Yin et al. (2018), https://arxiv.org/abs/1803.01498, Definition 1 and Algorithm 1, option I. All uploads have the same
weight, since clients report their own numbers of samples. For an even number of uploads it is the mean of the middle
two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core.federation.aggregators import Uploads
from pflcli.core.federation.aggregators._collected import Collected, combine_by_coordinate
from pflcli.core.parameters import Params, Stacked


@dataclass(frozen=True)
class Config:
    """No options."""


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return a collection that computes the median of the uploads."""
    return Collected(_median)


def _median(stacked: Stacked, weights: NDArray[np.float64]) -> tuple[Params, NDArray[np.float64]]:
    return combine_by_coordinate(stacked, _middle)


def _middle(numbers: Tensor) -> tuple[Tensor, Tensor]:
    lower, upper = numbers[(len(numbers) - 1) // 2], numbers[len(numbers) // 2]
    return (lower + upper) / 2, torch.stack([lower, upper])
