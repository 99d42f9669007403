"""Hashes of samples, for requests: the same samples from two folders make the same artifact."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from pflcli.data.datasets import Samples


def of_marks(values: NDArray[np.bool_]) -> str:
    """Return a hash of which samples (n,) are marked."""
    return hashlib.sha256(np.packbits(values).tobytes()).hexdigest()


def of_samples(samples: Samples) -> str:
    """A fingerprint of the data itself: two folders with the same samples make the same artifact."""
    digest = hashlib.sha256()
    for array in (samples.x, samples.y):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    if samples.owner is not None:
        digest.update("\n".join(samples.owner.tolist()).encode())
    if samples.ordered:
        digest.update(f"ordered, gap {samples.gap}".encode())
    if samples.group is not None:
        digest.update(b"group")
        digest.update(np.ascontiguousarray(samples.group).data)
    if samples.coarse is not None:
        digest.update(np.ascontiguousarray(samples.coarse).data)
    return digest.hexdigest()
