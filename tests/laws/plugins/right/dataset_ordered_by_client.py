"""Samples in the order of clients; nothing is unusual but their number."""

from __future__ import annotations

import numpy as np

from pflcli.core.datasets import Samples

CLASSES = 3
SHAPE = "4"
LICENCE = "none"


def load(root, *, download=False):
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(8), 40)
    y = draw.integers(0, 3, len(owner))
    x = y[:, None] + draw.normal(size=(len(y), 4))
    x += 0.3 * owner[:, None]
    return Samples(x.astype(np.float32), y, CLASSES, np.asarray([f"client {c}" for c in owner]))
