"""DP-FedAvg: the server's mean of clipped updates with Gaussian noise, and clients sampled independently.

McMahan et al. (2018), https://arxiv.org/abs/1710.06963, user level, with the fixed denominator of their estimator f_f.
In a round each of n clients takes part with probability q. All that a client sends in the round is one vector; its
update d is clipped to C in L2 norm, and from the model x that clients received the server computes::

    x + (sum of d min(1, C / |d|) + N(0, (z C)^2 I)) / (q n)

All clients have the same weight. Adding or removing one client changes the sum by at most C. Clients that do not
complete the round only lower the sum; without any upload it is only noise. All floating-point tensors are covered,
including buffers; integers are not allowed.

Adaptive clipping (Andrew et al., 2021, https://arxiv.org/abs/1905.03871, Algorithm 1) moves C towards the median of
norms: C <- C exp(-0.2 (b - 0.5)), where b is the share of updates with a norm of at most C. The count has separate
noise with standard deviation s_b, and the sum then has z' = (z^-2 - (2 s_b)^-2)^(-1/2) in place of z (their Theorem 1),
so that both together are a Gaussian mechanism with z. s_b is a twentieth of the expected cohort as in the paper, but at
least z, as z' does not exist for 2 s_b <= z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import parameters
from pflcli.core.errors import ComputationError, UnsuitedError
from pflcli.core.parameters import Mean, Params, Stacked

FIRST_CLIP = 0.1
"""C of the first round with adaptive clipping, as in the paper."""
_CLIP_RATE, _CLIP_QUANTILE, _COUNT_NOISE_SHARE = 0.2, 0.5, 0.05
"""Step size and quantile of adaptive clipping, and s_b as a share of the expected cohort."""

Row = dict[str, Any]


@dataclass
class PrivateMean:
    """The aggregator of a run with differential privacy, with the clip of the current round.

    ``noise`` is the multiplier z, ``rate`` is q, ``clients`` is n. ``rng`` is a keyed generator with a seed that no
    other run has: noise that two runs share cancels in their difference.
    """

    noise: float
    clip: float
    adapts: bool
    rate: float
    clients: int
    rng: Callable[..., np.random.Generator]
    release: Release | None = None
    """the mean of the round in progress"""
    _round: int | None = None

    separable = False

    @property
    def expected(self) -> float:
        """The expected number of clients in a round: the fixed denominator."""
        return self.rate * self.clients

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise on the count of short updates."""
        return max(_COUNT_NOISE_SHARE * self.expected, self.noise) if self.adapts and self.noise else 0.0

    @property
    def sum_noise(self) -> float:
        """The noise multiplier of the sum of updates."""
        if not self.count_noise:
            return self.noise
        return float((self.noise**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    def sample(self, participants: NDArray[np.int64], t: int) -> NDArray[np.int64]:
        """Return the clients of round ``t``: each is included independently with probability ``rate``."""
        return participants[self.rng("privacy", "cohort", t).random(len(participants)) < self.rate]

    def begin_round(self, t: int) -> None:
        """Begin round ``t``, which must have exactly one mean."""
        self._round, self.release = t, None

    def begin(self, downloaded: Params) -> Release:
        """Return the mean of this round; raises UnsuitedError for several means in a round, or integer tensors."""
        if self._round is None or self.release is not None:
            means = "means before the rounds" if self._round is None else "several means in a round"
            raise UnsuitedError(
                f"differential privacy does not cover this method: its server computes {means}",
                "leave out --dp-epsilon and --dp-noise",
            )
        integers = [name for name, value in downloaded.items() if not value.is_floating_point()]
        if integers:
            raise UnsuitedError(
                f"differential privacy cannot add noise to integers ({integers[0]}): the model has batch normalization",
                "choose a --model without batch normalization, or the method fedbn, which does not send it",
            )
        self.release = Release(self, downloaded, self._round)
        return self.release

    def end_round(self) -> Row:
        """Return the round's columns of ``rounds.csv``, and adapt the clip; raises ComputationError without a mean."""
        release, t = self.release, self._round
        self.release = self._round = None
        if release is None or not release.is_released or t is None:
            raise ComputationError("the method ended a round without a mean, so without noise")
        row: Row = {"clip": self.clip, "uploads": release.uploads, "clipped": release.clipped}
        self.resume(t, row)
        return row

    def resume(self, t: int, row: Row) -> None:
        """Set the clip to its value after round ``t``, from the ``row`` of this round."""
        self.clip = float(row["clip"])
        if self.adapts:
            short, draw = row["uploads"] - row["clipped"], self.rng("privacy", "count", t)
            # Each client adds 1/2 or -1/2 instead of 1 or 0, which changes the sum by at most 1/2.
            total = short - row["uploads"] / 2 + self.count_noise * float(draw.normal())
            self.clip *= math.exp(-_CLIP_RATE * (total / self.expected + 0.5 - _CLIP_QUANTILE))


class Release:
    """The noisy mean of the uploads of one round, by clients that received ``downloaded``."""

    def __init__(self, mechanism: PrivateMean, downloaded: Params, t: int) -> None:
        self._mechanism, self._downloaded, self._round = mechanism, downloaded, t
        self._mean, self._weight = Mean(), 0.0
        self.uploads, self.clipped = 0, 0
        self.is_released = False

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Clip the updates of the uploads (m, ...) and add them; a weight of 0 leaves an upload out."""
        norms = self.norms(stacked)
        usable = np.flatnonzero(np.isfinite(norms) & (np.asarray(weights) > 0))
        if not len(usable):
            return
        factors = self.factors(norms[usable])
        self._mean.add(parameters.take(stacked, usable) if len(usable) < len(norms) else stacked, factors)
        self._weight += float(factors.sum())
        self.uploads += len(usable)
        self.clipped += int((norms[usable] > self._mechanism.clip).sum())

    def norms(self, stacked: Stacked) -> NDArray[np.float64]:
        """Return the L2 norms (m,) of the updates over all tensors."""
        parts = [
            torch.linalg.vector_norm(
                (value - self._downloaded[name]).unsqueeze(-1).flatten(1), dim=1, dtype=torch.float64
            )
            for name, value in stacked.items()
        ]
        return np.asarray(torch.linalg.vector_norm(torch.stack(parts), dim=0).cpu().numpy())

    def factors(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factors (m,) that clip updates with these norms (m,)."""
        return np.minimum(1.0, self._mechanism.clip / np.maximum(norms, np.finfo(np.float64).tiny))

    def noise(self, name: str, like: Tensor) -> Tensor | float:
        """Return the noise on the sum of updates of one tensor."""
        scale = self._mechanism.sum_noise * self._mechanism.clip if self._mechanism.noise else 0.0
        if not scale:
            return 0.0
        draw = self._mechanism.rng("privacy", "noise", self._round, name)
        return torch.from_numpy(scale * draw.normal(size=tuple(like.shape))).to(like.device)

    def value(self) -> Params:
        """Return the noisy mean; repeated calls return the same values."""
        self.is_released = True
        sums, expected = self._mean.total().params if self.uploads else {}, self._mechanism.expected
        mean = {}
        for name, start in self._downloaded.items():
            # sum f_i (x_i - x) = sum f_i x_i - x sum f_i
            total = (expected - self._weight) * start.double() + self.noise(name, start)
            mean[name] = ((sums[name] + total if name in sums else total) / expected).to(start.dtype)
        return mean
