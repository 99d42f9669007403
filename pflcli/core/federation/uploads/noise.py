"""Add Gaussian noise to each client's update before it is sent, so that nobody receives the exact update.

Abadi et al. (2016), https://arxiv.org/abs/1607.00133, add it to gradients, DP-FedAvg to the sum of updates
(``--dp-epsilon``). Here each client adds its own noise, which also protects the update from the server and from other
clients, and costs more accuracy. It comes from a secret of the run, not from ``--seed``. ``--upload clip:C --upload
noise:S`` bounds an update and hides it. No epsilon is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from pflcli.core.parameters import Stacked

RANDOM = True


@dataclass(frozen=True)
class Config:
    """Options of the step."""

    deviation: Annotated[float, Ge(0)] = 0.01
    """standard deviation of the noise on each number of an update"""


def apply(params: Stacked, downloaded: Stacked, cfg: Config, draw: Callable[[int], np.random.Generator]) -> Stacked:
    """Return the uploads (m, ...) with noise on all floating-point tensors."""
    noisy = dict(params)
    if not cfg.deviation:
        return noisy
    draws = [draw(position) for position in range(len(next(iter(params.values()), ())))]
    for name, value in params.items():
        if value.is_floating_point():
            noise = [each.standard_normal(tuple(value.shape[1:]), dtype=np.float32) for each in draws]
            noisy[name] = value + cfg.deviation * torch.from_numpy(np.stack(noise)).to(value)
    return noisy
