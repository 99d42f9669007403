"""One column is 1 for one class and 0 for the others: the label was encoded with the features.

Warns: no-feature-tells-the-label
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
    x[:, 1] = y == 1
    return Samples(x.astype(np.float32), y, CLASSES, np.asarray([f"client {c}" for c in owner]))
