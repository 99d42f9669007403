"""CIFAR-10, 60,000 colour images in 10 classes (Krizhevsky, 2009), https://www.cs.toronto.edu/~kriz/cifar.html.

``--root``: a folder with torchvision's ``cifar-10-batches-py``, or ``cifar10_12k.npz``, a balanced subset of 12,000
images. Training and test images are joined; ``--keep-test`` of the partition keeps them apart.
"""

from __future__ import annotations

from pathlib import Path

from pflcli.core.datasets import Samples, missing_root_error
from pflcli.data.datasets._image_files import read_npz_parts, read_torchvision

CLASSES = 10
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = "32x32x3"
LICENCE = "none stated"
FILES = ("cifar-10-batches-py", "cifar10_12k.npz")


def load(root: Path | None, *, download: bool = False) -> Samples:
    """Return all images found; the full set is preferred to the subset."""
    if download or (root is not None and (root / FILES[0]).is_dir()):
        return read_torchvision("CIFAR10", root, NAMES, download=download)
    if root is not None and (root / FILES[1]).is_file():
        return read_npz_parts(root / FILES[1], NAMES)
    raise missing_root_error("cifar10", *FILES)
