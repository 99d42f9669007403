"""The representations of the clients' samples under a backbone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Embedded:
    """One split of all clients: representations ``z`` (n, d), ``logits`` (n, C), ``y`` (n,), ``offsets`` (m + 1,)."""

    z: NDArray[np.float32]
    logits: NDArray[np.float32]
    y: NDArray[Any]
    offsets: NDArray[np.int64]

    def take(self, clients: NDArray[np.int64]) -> Embedded:
        """Return the samples of these clients, in this order."""
        spans = [np.arange(self.offsets[c], self.offsets[c + 1]) for c in clients]
        rows = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum([len(span) for span in spans])]).astype(np.int64)
        return Embedded(self.z[rows], self.logits[rows], self.y[rows], bounds)
