"""MNIST, 70,000 handwritten digits in 10 classes (LeCun et al., 1998), http://yann.lecun.com/exdb/mnist/.

``--root``: a folder with torchvision's ``MNIST/raw``, or with the four idx files themselves, gzipped or not, or with
``mnist_by_writer.npz`` (52,047 digits; dataset ``writers`` keeps their writers). Training and test images are joined;
``--keep-test`` of the partition keeps them apart.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pflcli.core.datasets import Samples, missing_root_error
from pflcli.core.foreign import read_npz
from pflcli.data.datasets._image_files import read_idx_parts, read_torchvision

CLASSES = 10
NAMES = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
SHAPE = "28x28"
LICENCE = "CC BY-SA 3.0"
FILES = ("MNIST/raw", "train-images-idx3-ubyte*", "mnist_by_writer.npz")


def load(root: Path | None, *, download: bool = False) -> Samples:
    """Return all digits found, white on black; the full set is preferred to the subset."""
    if download:
        return read_torchvision("MNIST", root, NAMES, download=True)
    if root is not None:
        samples = read_idx_parts([root / "MNIST" / "raw", root], ("train", "t10k"), NAMES)
        if samples is not None:
            return samples
        if (root / FILES[2]).is_file():
            x, y, is_test = read_npz(root / FILES[2], "x", "y", "mnist_test")
            return Samples(x, y.astype(np.int64), CLASSES, names=NAMES, is_test=is_test)
    raise missing_root_error("mnist", *FILES)
