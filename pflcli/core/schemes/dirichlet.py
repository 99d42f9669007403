"""For each label, a Dirichlet(alpha) draw over clients decides each client's share of it.

kNN-Per (Marfoq et al., 2022), section 5, after Wang et al. (2020). Sizes and label distributions are both unbalanced;
small alpha leaves clients empty, which ``--min-samples`` repairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from pflcli.core.datasets import Samples
from pflcli.core.schemes import Indices, draw_shares, require_clients


@dataclass(frozen=True)
class Config:
    """Options of the scheme."""

    alpha: Annotated[float, Gt(0)] = 0.3
    """use this concentration: near 0 each label goes to one client, large values approach iid"""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return ``clients`` parts, some possibly empty; each label takes one draw, so it ends for every alpha."""
    return deal(samples.y, require_clients("dirichlet", clients, len(samples.y)), cfg.alpha, rng)


def deal(y: NDArray[np.int64], count: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Deal the rows of ``y`` (n,) to ``count`` clients, label by label."""
    dealt: list[list[Indices]] = [[] for _ in range(count)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        sizes = rng.multinomial(len(rows), draw_shares(alpha, count, rng))
        for client, part in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
            dealt[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in dealt]
