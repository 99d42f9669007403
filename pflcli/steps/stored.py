"""Reading a datastore: its indexes are what FAISS wrote, over as many vectors as there are labels."""

from __future__ import annotations

import numpy as np

from pflcli.artifacts import blocks, datastore
from pflcli.artifacts.artifact import Artifact
from pflcli.artifacts.datastore import Packed
from pflcli.fl import indexes
from pflcli.fl.neighbours import flat_vectors


def read(artifact: Artifact, classes: int, dimension: int | None = None, *, exact: bool = False) -> Packed:
    """Return the stores of an artifact, over labels of so many ``classes`` and vectors of this ``dimension``.

    ``exact`` says that no other than exact indexes can be meant.
    Raises InputError if a file is damaged, or does not fit this or the others.
    """
    packed = datastore.read(artifact)
    blocks.check_labels(f"{artifact.path}/labels.h5", packed.y, classes)
    with artifact.parsing(datastore.INDEXES):
        for client, rows in enumerate(np.diff(packed.offsets)):
            raw = packed.blob[packed.bytes[client] : packed.bytes[client + 1]]
            vectors = flat_vectors(raw)
            if vectors is None and exact:
                raise ValueError(f"client {client} has another index than {indexes.EXACT}")
            if vectors is None:
                index = indexes.read(raw)
                count, wide = int(index.ntotal), int(index.d)
            else:
                count, wide = vectors.shape
                if not np.isfinite(vectors).all():
                    raise ValueError(f"client {client} has a vector that is not finite")
            dimension = wide if dimension is None else dimension
            if (count, wide) != (rows, dimension):
                raise ValueError(f"client {client} has {count} vectors of {wide} numbers, not {rows} of {dimension}")
    return packed
