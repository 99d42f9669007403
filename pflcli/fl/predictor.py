"""What a method answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictor:
    """What a method answers for some clients.

    ``answer(split)`` returns ``p`` (n, C), rows of probabilities in the clients' order, and further (n, C) parts that
    explain it; ``splits`` are those that it answers, of ``run.answered``; ``tuned`` holds (m,) values that each client
    chose on its validation data.
    """

    answer: Callable[[str], Mapping[str, NDArray[np.float32]]]
    splits: tuple[str, ...] = ("validation", "test")
    tuned: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
