"""Embeddings: ``embeddings.h5``, one group a split, flat arrays sorted by client.

Group ``train``, ``validation``, ``test``: ``z`` (n, d) float32, the input of the model's head; ``logits`` (n, C)
float32; ``y`` (n,), ``sample`` (n,) int64; ``offsets`` (m + 1,) int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import blocks
from pflcli.artifacts.artifact import Artifact
from pflcli.artifacts.store import Work
from pflcli.errors import InputError


@dataclass(frozen=True)
class Embedded:
    """One split of all clients, embedded; see the module for shapes."""

    z: NDArray[np.float32]
    logits: NDArray[np.float32]
    y: NDArray[np.int64]
    sample: NDArray[np.int64]
    offsets: NDArray[np.int64]


FIELDS = ("z", "logits", "y", "sample", "offsets")


def write(work: Work, splits: Mapping[str, Embedded]) -> None:
    """Write ``embeddings.h5``."""
    arrays = {f"{split}/{name}": getattr(part, name) for split, part in splits.items() for name in FIELDS}
    work.write("embeddings.h5", blocks.h5_bytes(arrays))


def read(artifact: Artifact) -> dict[str, Embedded]:
    """Read all splits; raises InputError if the file is damaged or inconsistent."""
    with artifact.h5("embeddings.h5") as file:
        splits = {split: Embedded(**{name: file[f"{split}/{name}"][...] for name in FIELDS}) for split in blocks.SPLITS}
        for split, part in splits.items():
            lengths = (len(part.z), len(part.logits), len(part.y), len(part.sample))
            where = f"{artifact.path}/embeddings.h5, split {split},"
            blocks.check(where, part.offsets, *lengths)
            if part.z.ndim != 2 or part.logits.ndim != 2:
                raise InputError(f"{where} is inconsistent: z or logits are no rows")
            blocks.check_labels(where, part.y, part.logits.shape[1])
    return splits
