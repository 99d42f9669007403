"""Who the clients of stored predictions are: their names, and which of them come again under another seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.errors import GoneError

_NUMBERED = re.compile(r"client-\d+")
"""What a partition calls clients that are nobody in the data."""


def names(artifact: Artifact) -> list[str] | None:
    """Return the names that clients have in the data, (m,); None if they have none, or it is not known any more."""
    known = list(codebook.read(artifact).clients)
    return None if all(_NUMBERED.fullmatch(name) for name in known) else known


def identities(
    artifacts: Mapping[int, Artifact], samples: Mapping[int, Sequence[NDArray[np.int64]]]
) -> dict[int, NDArray[np.str_]]:
    """Return who each client is, (m,) by seed; the same word under two seeds is the same client.

    A client that has a name in the data (a writer, a hospital) is the same wherever it comes again. Others are the same
    only where the partition is, or, if that is gone, where all clients hold the same samples: ``samples`` has for each
    seed their ids and offsets.
    """
    found: dict[int, NDArray[np.str_]] = {}
    for seed, artifact in artifacts.items():
        known = names(artifact)
        partition = _partition(artifact)
        twin = next(s for s in samples if all(map(np.array_equal, samples[s], samples[seed])))
        group = f"samples of seed {twin}" if partition is None else partition.manifest.fingerprint
        count = len(samples[seed][1]) - 1
        found[seed] = np.asarray(known if known is not None else [f"{group}/{client}" for client in range(count)])
    return found


def _partition(artifact: Artifact) -> Artifact | None:
    try:
        return ancestor(artifact, "partition")
    except GoneError:
        return None  # it has moved; scores need nothing of it but names
