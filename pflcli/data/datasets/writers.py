"""MNIST digits by writer: each client is a person.

60 writers are included in pfl. ``--root`` with ``mnist_by_writer.npz`` reads all the writers in that file. Digits:
LeCun et al. (1998), from NIST Special Database 19; writer ids: QMNIST, Yadav and Bottou (2019),
https://arxiv.org/abs/1905.10498.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pflcli.core.datasets import Samples, missing_root_error
from pflcli.core.foreign import read_npz

CLASSES = 10
NAMES = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
SHAPE = "28x28"
LICENCE = "MNIST: CC BY-SA 3.0; writer ids: BSD"
FILES = ("mnist_by_writer.npz",)


def load(root: Path | None, *, download: bool = False) -> Samples:
    """Return the digits of the embedded writers, or of all writers in ``root``."""
    path = Path(__file__).parent / "writers.npz" if root is None else root / FILES[0]
    if download or not path.is_file():
        raise missing_root_error("the full set of writers", *FILES, source="without --root, 60 writers are used")
    x, y, writer = read_npz(path, "x", "y", "writer")
    return Samples(x, y.astype(np.int64), CLASSES, np.asarray([f"w{i:04d}" for i in writer]), names=NAMES)
