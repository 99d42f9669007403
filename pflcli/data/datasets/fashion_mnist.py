"""Fashion-MNIST, 70,000 images of clothing in 10 classes (Xiao et al., 2017), https://arxiv.org/abs/1708.07747.

``--root``: a folder with ``fashion_mnist.npz`` or torchvision's ``FashionMNIST/raw``. Training and test images are
joined; ``--keep-test`` of the partition keeps them apart.
"""

from __future__ import annotations

from pathlib import Path

from pflcli.core.datasets import Samples, missing_root_error
from pflcli.data.datasets._image_files import read_idx_parts, read_npz_parts, read_torchvision

CLASSES = 10
NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
SHAPE = "28x28"
LICENCE = "MIT"
FILES = ("fashion_mnist.npz", "FashionMNIST/raw")


def load(root: Path | None, *, download: bool = False) -> Samples:
    """Return all images; raises UsageError if neither layout is found and ``download`` is off."""
    if root is not None and (root / FILES[0]).is_file():
        return read_npz_parts(root / FILES[0], NAMES)
    if download:
        return read_torchvision("FashionMNIST", root, NAMES, download=True)
    if root is not None and (samples := read_idx_parts([root / FILES[1]], ("train", "t10k"), NAMES)) is not None:
        return samples
    raise missing_root_error("fashion-mnist", *FILES)
