"""Levels of intervals when seeds are added until a result is decided: alpha spending after Lan and DeMets (1983).

Whoever looks at the results after each seed, and stops when a difference is significant, finds differences by chance
more often than at a single look. At a share t of the most seeds, looks up to now may together err with the probability
that O'Brien and Fleming's rule spends, alpha(t) = 2 - 2 Phi(z / sqrt(t)) with z the quantile of 1 - alpha / 2
(https://doi.org/10.1093/biomet/70.3.659). A look may err with what was not spent before it, so that by the union bound
all looks err with at most alpha, however results of different looks are correlated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from pflcli.evaluation.metrics.gains import LEVEL


@dataclass(frozen=True)
class Looks:
    """Looks after ``first`` seeds and after each further seed, up to ``most``."""

    first: int
    most: int

    def level(self, seeds: int) -> float:
        """Return the coverage of intervals at the look after this many seeds, at most ``most``."""
        now = max(seeds, self.first)
        before = 0.0 if now == self.first else spend((now - 1) / self.most)
        return 1 - (spend(now / self.most) - before)


def spend(share: float) -> float:
    """Return the probability of an error that is spent at this share of the seeds, from 0 to 1 (inclusive)."""
    return float(2 * ndtr(ndtri((1 - LEVEL) / 2) / math.sqrt(share)))
