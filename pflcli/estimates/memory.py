"""The peak of memory of a run: that of its rehearsal, and what all clients take beyond the few of that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.federation import SPLITS
from pflcli.estimates.excerpt import Excerpt
from pflcli.estimates.rehearsal import NUMBER, Rehearsal
from pflcli.methods import Method
from pflcli.training.predict import MIN_BATCH

_COPIES = 5
"""Copies of the models of a chunk of clients: start, result, one sorted by steps, gradients, and a mean in float64."""
_ANSWERS, _STATES = 3, 3
"""Copies of all answers, and of a state: as tensors, joined, and as the bytes of a file."""


@dataclass(frozen=True)
class Peak:
    """Bytes that a run has in memory at a time: what it computes with, and what it holds for all clients."""

    samples: float
    models: float
    state: float
    answers: float
    pairs: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.samples + self.models + self.state + self.answers + self.pairs

    @property
    def largest(self) -> str:
        """The name of the largest part."""
        return max(("samples", "models", "state", "answers", "pairs"), key=lambda name: float(getattr(self, name)))


def of_run(method: Method, rehearsal: Rehearsal, part: Excerpt) -> Peak:
    """Return what a run on all clients of a partition takes beyond the process that runs it."""
    return _peak(method, rehearsal, part, part.sizes, rehearsal.cohort)


def of_rehearsal(method: Method, rehearsal: Rehearsal, part: Excerpt) -> Peak:
    """Return what of that the rehearsal itself took: that of its few clients."""
    return _peak(method, rehearsal, part, part.federation.sizes(*SPLITS)[:, None], rehearsal.rehearsed_cohort)


def _peak(method: Method, rehearsal: Rehearsal, part: Excerpt, sizes: NDArray[np.int64], cohort: int) -> Peak:
    """Return the peak with clients of these ``sizes`` (m, ...) by split, of which a round has ``cohort``."""
    clients, samples = len(sizes), int(sizes.sum())
    compares_all = method.PAIRS_SENT == "models" or method.PAIRS_KEPT >= NUMBER
    together = clients if compares_all else max(cohort, MIN_BATCH, clients // 100)
    image = part.federation.x.ndim == 4 and part.federation.in_shape[0] > 1
    answered_share = part.sizes[:, [SPLITS.index(split) for split in rehearsal.splits]].sum() / max(part.sizes.sum(), 1)
    return Peak(
        samples=samples * part.sample_bytes * (2 if image else 1),  # images are copied to put their channels first
        models=_COPIES * rehearsal.model_bytes * min(together, rehearsal.clients_that_fit, clients),
        state=_STATES * rehearsal.state_bytes * clients / len(part.sizes),
        answers=_ANSWERS * samples * answered_share * (4 * rehearsal.parts * part.federation.classes + 16),
        pairs=method.PAIRS_KEPT * clients**2,
    )
