"""TITLE: two noisy classes in two dimensions, for twenty clients whose classes are rotated.

Replace this text by what the data are, and by their source. ``pfl check FILE`` tests the laws that every dataset
satisfies. Tables, arrays and folders of images need no file of code: ``pfl import`` reads them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pflcli.method import Samples

CLASSES = 2
NAMES = ("left", "right")
SHAPE = "2"
LICENCE = "the licence of the data"


def load(root: Path | None, *, download: bool = False) -> Samples:
    """Return all samples. ``root`` is the folder given by ``--root``, from which most datasets read their files."""
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 50)
    y = draw.integers(0, CLASSES, len(owner))
    angle = np.pi * y + 0.1 * owner
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.5 * draw.normal(size=(len(y), 2))
    return Samples(x.astype(np.float32), y, CLASSES, np.asarray([f"client {c}" for c in owner]), names=NAMES)
