"""Each client has the samples of the first.

Warns: samples-are-not-repeated
"""

from __future__ import annotations

import numpy as np

from pflcli.data.datasets import Samples

CLASSES = 3
SHAPE = "4"
LICENCE = "none"


def load(root, *, download=False):
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(8), 40)
    y = draw.integers(0, 3, len(owner))
    x = y[:, None] + draw.normal(size=(len(y), 4))
    x, y = np.tile(x[:40], (8, 1)), np.tile(y[:40], 8)
    return Samples(x.astype(np.float32), y, CLASSES, np.asarray([f"client {c}" for c in owner]))
