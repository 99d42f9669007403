"""FEMNIST, characters of 62 classes by 3,550 writers: each client is a person.

Caldas et al. (2018), https://arxiv.org/abs/1812.01097. ``--root``: a folder with the ``all_data*.json`` that LEAF's
``data/femnist/preprocess.sh`` creates, directly or in ``femnist``, or LEAF's own ``data`` folder. Classes are 0-9, A-Z,
a-z. As in LEAF, and unlike MNIST, ink is dark (near 0) on a white ground (255): LEAF's values in [0, 1] times 255.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.datasets import Samples, find_files, missing_root_error
from pflcli.core.errors import InputError
from pflcli.data.datasets._leaf import iterate_users, require_all_splits

CLASSES = 62
NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SHAPE = "28x28"
LICENCE = "NIST: a work of the US Government; LEAF: BSD"
FILES = ("femnist/data/all_data/*.json", "femnist/all_data*.json", "all_data*.json")


def load(root: Path | None, *, download: bool = False) -> Samples:
    """Return the characters of all writers in the files; raises InputError if an image is not 784 values in [0, 1]."""
    paths = find_files(root, FILES)
    if download or not paths:
        raise missing_root_error(
            "femnist", *FILES, source="LEAF's preprocess.sh -s niid --sf 1.0 -k 0 -t sample makes them"
        )
    require_all_splits(paths)
    x, y, owner = [], [], []
    for user, images, labels, where in iterate_users(paths):
        if labels:
            x.append(_to_pixels(images, where))
            y.append(_to_labels(labels, where))
            owner += [user] * len(labels)
    if not x:
        raise InputError(f"{paths[0].parent}: no user has a sample")
    return Samples(np.concatenate(x), np.concatenate(y), CLASSES, np.asarray(owner), names=NAMES)


def _to_pixels(images: list[Any], where: str) -> NDArray[np.uint8]:
    """Return (n, 28, 28) uint8 of n lists of 784 numbers in [0, 1]."""
    try:
        values = np.asarray(images, dtype=np.float64)
    except (ValueError, TypeError):
        values = np.empty(0)
    # Not-a-number fails the comparison too.
    if values.shape != (len(images), 784) or not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError(f"{where}: x is not a list of images of 784 numbers from 0 to 1")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, 28, 28)


def _to_labels(labels: list[Any], where: str) -> NDArray[np.int64]:
    if not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise InputError(f"{where}: y is not a list of whole numbers from 0 to {CLASSES - 1}")
    return np.asarray(labels, dtype=np.int64)
