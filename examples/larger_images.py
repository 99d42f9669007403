"""Enlarge the first images of CIFAR-10: python examples/larger_images.py ROOT COUNT SIDE FILE, for ``pfl import``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from pflcli.data.datasets import cifar10


def main() -> None:
    """Write COUNT images of SIDE pixels, and their classes, to FILE (.npz)."""
    root, count, side, file = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    samples = cifar10.load(root)
    images = (Image.fromarray(x).resize((side, side), Image.Resampling.BILINEAR) for x in samples.x[:count])
    np.savez(file, x=np.stack([np.asarray(image) for image in images]), y=samples.y[:count])


if __name__ == "__main__":
    main()
