"""For each label, a Dirichlet(alpha) draw over clients decides each client's share of it.

kNN-Per (Marfoq et al., 2022), section 5, after Wang et al. (2020). Sizes and label distributions are both unbalanced;
small alpha leaves clients empty, which ``--min-samples`` repairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from pflcli.schemes import Indices, needs_clients


@dataclass(frozen=True)
class Config:
    """Options of the scheme."""

    alpha: Annotated[float, Gt(0)] = 0.3
    """concentration: near 0 each label goes to one client, large values approach iid"""


def split(
    y: NDArray[np.int64],
    owner: NDArray[Any] | None,
    clients: int | None,
    cfg: Config,
    rng: np.random.Generator,
) -> list[Indices]:
    """Return ``clients`` parts, some possibly empty; one draw a label, so it ends for every alpha."""
    count = needs_clients("dirichlet", clients, len(y))
    held: list[list[Indices]] = [[] for _ in range(count)]
    for label in np.unique(y):
        samples = rng.permutation(np.flatnonzero(y == label))
        sizes = rng.multinomial(len(samples), _shares(cfg.alpha, count, rng))
        for client, part in enumerate(np.split(samples, np.cumsum(sizes)[:-1])):
            held[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in held]


def _shares(alpha: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return one Dirichlet draw (count,), also where alpha is so extreme that the draw under- or overflows."""
    with np.errstate(all="ignore"):
        shares: NDArray[np.float64] = rng.dirichlet(np.full(count, min(alpha, 1e12)))
        shares = shares / shares.sum()
    if not np.isfinite(shares).all():
        # The limit of alpha -> 0: all mass on one client.
        shares = np.eye(count)[rng.integers(count)]
    return shares
