#!/usr/bin/env python
"""Fashion-MNIST dealt to clients as PFLlib deals it, for ``pfl import``: a file with x, label and client.

python examples/public_partition.py fashion_mnist.npz OUT.npz

Each label's images are shuffled and cut by a Dirichlet draw over the clients that hold less than an equal share, with
NumPy's generator of old from seed 1; pixels run from -1 to 1. So the clients are the very ones of the published table:
https://github.com/TsingZ0/PFLlib, ``dataset/generate_FashionMNIST.py``. The draw of test samples is our own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLIENTS, ALPHA, LEAST = 20, 0.1, 40


def deal(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the client (n,) of each sample with ``labels`` (n,)."""
    random = np.random.RandomState(1)
    client = np.zeros(len(labels), dtype=np.int64)
    sizes = np.zeros(CLIENTS, dtype=np.int64)
    while sizes.min() < LEAST:
        sizes[:] = 0
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            random.shuffle(rows)
            share = random.dirichlet(np.repeat(ALPHA, CLIENTS)) * (sizes < len(labels) / CLIENTS)
            cuts = (np.cumsum(share / share.sum()) * len(rows)).astype(int)[:-1]
            for owner, part in enumerate(np.split(rows, cuts)):
                client[part] = owner
                sizes[owner] += len(part)
    return client


def main(source: Path, out: Path) -> None:
    """Write the dealt dataset."""
    with np.load(source) as arrays:
        images = np.concatenate([arrays["x_train"], arrays["x_test"]])
        labels = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    x = images[:, None].astype(np.float32) / 127.5 - 1
    np.savez(out, x=x, label=labels, client=deal(labels))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
