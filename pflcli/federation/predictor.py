"""The predictions of a method, computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictor:
    """Computes a method's predictions for a list of clients.

    ``answer(split)`` returns probabilities ``p`` (n, C) of the clients' samples in their order, and optionally (n, C)
    parts that explain ``p``. ``splits``, out of ``run.predicted_splits``, are those with predictions. ``tuned`` has
    values (m,) that each client chose on its validation samples.
    """

    answer: Callable[[str], Mapping[str, NDArray[np.float32]]]
    splits: tuple[str, ...] = ("validation", "test")
    tuned: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
