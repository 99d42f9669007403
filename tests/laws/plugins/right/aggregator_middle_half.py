"""The mean of the middle half of the values of each parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation.aggregators import Uploads
from pflcli.core.parameters import Params, Stacked


@dataclass(frozen=True)
class Config:
    """No options."""


class Collection:
    """The uploads of one round."""

    def __init__(self, downloaded: Params) -> None:
        self._downloaded = downloaded
        self._uploads: list[Stacked] = []

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Add uploads (m, ...) with weights (m,)."""
        keep = weights > 0
        self._uploads.append({name: value[torch.from_numpy(keep)] for name, value in stacked.items()})

    def value(self) -> Params:
        """Return the model."""
        if not sum(len(next(iter(part.values()))) for part in self._uploads):
            raise ValueError("there are no uploads")
        model = {}
        for name in self._uploads[0]:
            each = torch.cat([part[name] for part in self._uploads]).sort(dim=0).values
            cut = len(each) // 4
            model[name] = each[cut : len(each) - cut].double().mean(dim=0).to(each.dtype)
        return model


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty collection."""
    return Collection(downloaded)
