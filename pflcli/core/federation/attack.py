"""Attacks on updates: poisoned clients send manipulated updates to the server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import rng
from pflcli.core.parameters import Stacked


@dataclass(frozen=True)
class Attack:
    """Replaces each update u by ``factor`` u + ``noise`` rms(u) N(0, I), (m,) each; 1 and 0 for honest clients.

    A negative factor reverses the direction of training. The update covers all tensors of an upload; rms(u) is the root
    of its mean square.
    """

    factor: NDArray[np.float64]
    noise: NDArray[np.float64]
    seed: int

    def apply(self, params: Stacked, downloaded: Stacked, clients: NDArray[np.int64], t: int) -> Stacked:
        """Return the uploads (n, ...) of ``clients`` (n,) in round ``t``, trained from ``downloaded``."""
        poisoned = np.flatnonzero((self.factor[clients] != 1) | (self.noise[clients] != 0))
        if not len(poisoned):
            return params
        floating = [name for name, value in params.items() if value.is_floating_point()]
        changed = {**params, **{name: params[name].clone() for name in floating}}
        for row in poisoned.tolist():
            client = int(clients[row])
            update = {name: params[name][row] - downloaded[name][row] for name in floating}
            squares = sum(float(value.double().square().sum()) for value in update.values())
            rms = np.sqrt(squares / max(1, sum(value.numel() for value in update.values())))
            draw = rng.generator(self.seed, "attack", t, client, *floating[:1])
            for name, value in update.items():
                noise = draw.standard_normal(tuple(value.shape)) * rms * self.noise[client]
                changed[name][row] = (
                    downloaded[name][row] + self.factor[client] * value + torch.from_numpy(np.asarray(noise)).to(value)
                )
        return changed
