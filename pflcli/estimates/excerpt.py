"""An excerpt of a partition: a few clients of all sizes, with which runs are rehearsed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.reader import Artifact
from pflcli.engine.federation import Federation

_CLIENTS = 256
"""Most clients of an excerpt."""
_SAMPLE_BYTES = 64 << 20
"""Most bytes of samples that an excerpt has."""


@dataclass(frozen=True)
class Excerpt:
    """A few clients of a partition, in memory, with the sizes of all: ``sizes`` (m, 3) by client and split."""

    federation: Federation
    sizes: NDArray[np.int64]
    participants: int
    train_samples: float
    """mean number of training samples of a participant"""
    codebook_bytes: int = 0
    """of the codebook, which every artifact copies"""

    @property
    def samples(self) -> int:
        """The number of samples of all clients."""
        return int(self.sizes.sum())

    @property
    def sample_bytes(self) -> int:
        """The bytes of a sample with its label and its number."""
        return self.federation.x.element_size() * int(np.prod(self.federation.in_shape)) + 16

    @property
    def scale(self) -> float:
        """How many clients one of the excerpt stands for."""
        return len(self.sizes) / len(self.federation.clients)


def excerpt(partition: Artifact, device: str) -> Excerpt:
    """Read the samples of at most ``_CLIENTS`` clients: all, or every so many of them in the order of their sizes."""
    with partition.h5("samples.h5") as file:
        offsets = file["offsets"][...]
        sizes = np.diff(offsets).reshape(-1, 3)
        count = len(sizes)
        new = file["new"][...] if "new" in file else np.zeros(count, dtype=bool)
        order = np.lexsort([sizes.sum(axis=1), new])
        most = min(count, _CLIENTS)
        chosen = np.sort(order[np.linspace(0, count - 1, most).round().astype(int)])
        row_bytes = file["x"].dtype.itemsize * int(np.prod(file["x"].shape[1:]))
        while len(chosen) > 2 and sizes[chosen].sum() * row_bytes > _SAMPLE_BYTES:
            chosen = chosen[::2]
        spans = [(int(offsets[3 * client]), int(offsets[3 * client + 3])) for client in chosen]
        x, y = (np.concatenate([file[name][first:last] for first, last in spans]) for name in ("x", "y"))
        cluster = file["cluster"][...][chosen] if "cluster" in file else None
        classes = int(file.attrs["classes"])
    bounds = np.concatenate([[0], np.cumsum(sizes[chosen].ravel())])
    few_new = new[chosen] if new.any() else None
    federation = Federation.of(x, y, bounds, classes, device, few_new, cluster)
    able = (sizes[:, 0] > 0) & ~new
    mean = float(sizes[able, 0].mean()) if able.any() else 0.0
    copied = partition.path / codebook.FILE
    return Excerpt(federation, sizes, int(able.sum()), mean, copied.stat().st_size if copied.exists() else 0)
