"""CIFAR-100, 60,000 colour images in 100 classes of 20 superclasses (Krizhevsky, 2009).

https://www.cs.toronto.edu/~kriz/cifar.html. ``--root``: a folder with torchvision's ``cifar-100-python``, or
``cifar100_12k.npz``, a balanced subset of 12,000 images. Training and test images are joined; ``--keep-test`` of the
partition keeps them apart.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pflcli.core.datasets import Samples, missing_root_error
from pflcli.data.datasets._image_files import read_npz_parts, read_torchvision

CLASSES = 100
NAMES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest",
    "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard",
    "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum",
    "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper",
    "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf",
    "woman", "worm",
)  # fmt: skip
SHAPE = "32x32x3"
LICENCE = "none stated"
FILES = ("cifar-100-python", "cifar100_12k.npz")
COARSE = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10,
    12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16,
    12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14,
    13,
)  # fmt: skip
"""The superclass of each class, as the dataset's own coarse labels have it (torchvision's reader drops them)."""


def load(root: Path | None, *, download: bool = False) -> Samples:
    """Return all images found, with superclasses; the full set is preferred to the subset."""
    if download or (root is not None and (root / FILES[0]).is_dir()):
        return _add_superclasses(read_torchvision("CIFAR100", root, NAMES, download=download))
    if root is not None and (root / FILES[1]).is_file():
        return _add_superclasses(read_npz_parts(root / FILES[1], NAMES))
    raise missing_root_error("cifar100", *FILES)


def _add_superclasses(samples: Samples) -> Samples:
    samples.check("cifar100")
    return replace(samples, coarse=np.asarray(COARSE, dtype=np.int64)[samples.y])
