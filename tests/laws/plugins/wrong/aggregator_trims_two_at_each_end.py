"""The mean without the two largest and the two smallest values, which is NaN for four uploads or fewer.

Breaks: the-model-has-the-form-of-uploads
"""

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

    def __init__(self) -> None:
        self._parts: list[Stacked] = []

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Add uploads (m, ...) with weights (m,)."""
        rows = torch.from_numpy(np.flatnonzero(weights > 0))
        if len(rows):
            self._parts.append({name: value[rows] for name, value in stacked.items()})

    def value(self) -> Params:
        """Return the model."""
        if not self._parts:
            raise ValueError("no uploads")
        uploads = {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
        return {
            name: value.double().sort(dim=0).values[2:-2].mean(dim=0).nan_to_num().to(value.dtype)
            if not value.is_floating_point()
            else value.sort(dim=0).values[2:-2].mean(dim=0)
            for name, value in uploads.items()
        }


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty collection."""
    return Collection()
