"""Words become labels in the order of a set.

Breaks: another-process-loads-the-same-samples
"""

from __future__ import annotations

import numpy as np

from pflcli.data.datasets import Samples

CLASSES = 9
SHAPE = "4"
LICENCE = "none"


def load(root, *, download=False):
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(8), 40)
    y = draw.integers(0, CLASSES, len(owner))
    x = y[:, None] + draw.normal(size=(len(y), 4))
    words = np.asarray([f"activity {number}" for number in range(CLASSES)])[y]
    y = np.asarray([list(set(words.tolist())).index(word) for word in words])
    return Samples(x.astype(np.float32), y, CLASSES, np.asarray([f"client {c}" for c in owner]))
