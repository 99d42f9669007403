"""Clients differ in their numbers of samples, not in the distribution of these: quantity skew.

Shares of the data are a Dirichlet(beta) draw over clients, as in NIID-Bench (Li et al., 2022), section 4.3,
https://arxiv.org/abs/2102.02079, or proportional to log-normal draws, as in FedDyn (Acar et al., 2021),
https://arxiv.org/abs/2111.04263. Which samples they are is uniform, so labels are iid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray

from pflcli.core.datasets import Samples
from pflcli.core.schemes import Indices, draw_shares, require_clients

TASKS = ("any",)


@dataclass(frozen=True)
class Config:
    """Options of the scheme."""

    sizes: Literal["dirichlet", "log-normal"] = "dirichlet"
    """draw the clients' numbers of samples from this distribution"""
    beta: Annotated[float, Gt(0)] = 0.5
    """use this concentration of the Dirichlet draw: near 0 one client has all samples, large values approach
    equal sizes"""
    sigma: Annotated[float, Gt(0), Le(100)] = 1.0
    """use this standard deviation of the logarithm of a log-normal size; near 0 sizes are equal"""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return ``clients`` parts, some possibly empty; sizes are rounded shares of all samples and add up to them."""
    total = len(samples.y)
    count = require_clients("quantity", clients, total)
    share = draw_shares(cfg.beta, count, rng) if cfg.sizes == "dirichlet" else _draw_log_normal(cfg.sigma, count, rng)
    cuts = np.rint(np.cumsum(share)[:-1] * total).astype(np.int64)
    return [np.sort(part) for part in np.split(rng.permutation(total), cuts)]


def _draw_log_normal(sigma: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return shares (count,) proportional to exp(N(0, sigma^2)), scaled by the largest first against overflow."""
    exponent = rng.normal(0.0, sigma, count)
    size: NDArray[np.float64] = np.exp(exponent - exponent.max())
    size /= size.sum()
    return size
