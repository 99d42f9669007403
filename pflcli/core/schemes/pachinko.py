"""Each client prefers some coarse labels and, below each, some fine ones: pachinko allocation.

Reddi et al. (2021), appendix C.1, https://arxiv.org/abs/2003.00295, after Li and McCallum (2006); kNN-Per (Marfoq et
al., 2022), section 5, with alpha = 0.3 and beta = 10 for CIFAR-100. A client draws a Dirichlet(alpha) distribution over
coarse labels and, for each of them, a Dirichlet(beta) distribution over its fine labels, and draws floor(N / M) samples
from this tree without replacement. A label without samples left is removed, and the rest renormalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError
from pflcli.core.schemes import Indices, require_clients

LEAVES_OUT = True

Pool = dict[int, dict[int, list[int]]]
"""The rows without a client, by coarse and fine label, in random order; no entry is empty."""


@dataclass(frozen=True)
class Config:
    """Options of the scheme."""

    alpha: Annotated[float, Gt(0)] = 0.3
    """use this concentration over coarse labels: near 0 a client has one of them, large values approach iid"""
    beta: Annotated[float, Gt(0)] = 10.0
    """use this concentration over the fine labels below a coarse one"""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return ``clients`` parts of floor(N / M) samples each; the remaining samples are left out."""
    if samples.coarse is None:
        raise UsageError(
            "scheme pachinko needs coarse labels, which this dataset does not have", "--scheme dirichlet --clients 100"
        )
    count = require_clients("pachinko", clients, len(samples.y))
    pool: Pool = {}
    for row in rng.permutation(len(samples.y)).tolist():
        pool.setdefault(int(samples.coarse[row]), {}).setdefault(int(samples.y[row]), []).append(row)
    return [_draw_client(pool, len(samples.y) // count, cfg, rng) for _ in range(count)]


def _draw_client(pool: Pool, size: int, cfg: Config, rng: np.random.Generator) -> Indices:
    """Draw one client's ``size`` rows from the pool, and remove them.

    Distributions are drawn over the remaining labels: a Dirichlet draw over all labels, renormalised over some of them,
    is a Dirichlet draw over these.
    """
    coarse = _Choice(sorted(pool), cfg.alpha, rng)
    fine = {label: _Choice(sorted(pool[label]), cfg.beta, rng) for label in sorted(pool)}
    client_rows = []
    for _ in range(size):
        above = coarse.draw(rng)
        below = fine[above].draw(rng)
        rows = pool[above][below]
        client_rows.append(rows.pop())
        if not rows:
            del pool[above][below]
            fine[above].remove(below)
        if not pool[above]:
            del pool[above]
            coarse.remove(above)
    return np.sort(np.asarray(client_rows, dtype=np.int64))


class _Choice:
    """A Dirichlet-distributed choice among labels, some of which may be removed later."""

    def __init__(self, labels: list[int], concentration: float, rng: np.random.Generator) -> None:
        self._labels = labels
        self._log_weights = _draw_log_gammas(concentration, len(labels), rng)
        self._cumulate()

    def _cumulate(self) -> None:
        if self._labels:
            self._bounds = np.cumsum(np.exp(self._log_weights - self._log_weights.max()))

    def draw(self, rng: np.random.Generator) -> int:
        """Draw one label."""
        place = int(np.searchsorted(self._bounds, rng.random() * self._bounds[-1], side="right"))
        return self._labels[min(place, len(self._labels) - 1)]

    def remove(self, label: int) -> None:
        """Remove a label and renormalise."""
        place = self._labels.index(label)
        del self._labels[place]
        self._log_weights = np.delete(self._log_weights, place)
        self._cumulate()


def _draw_log_gammas(shape: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the logarithms of gamma variates (count,): normalised over any of them, they are a Dirichlet draw.

    Gamma(a) is Gamma(a + 1) U^(1 / a) in distribution, which in logarithms never underflows to 0 / 0 for small a.
    """
    shape = min(max(shape, 1e-12), 1e12)
    logs: NDArray[np.float64] = np.log(rng.standard_gamma(shape + 1, count)) + np.log1p(-rng.random(count)) / shape
    return logs
