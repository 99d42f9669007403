"""Who the clients of stored predictions are: their names, and which of them are the same under several seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.reader import Artifact, ancestor, follow
from pflcli.errors import GoneError, InputError

_NUMBERED = re.compile(r"client-\d+")
"""What a partition calls clients that have no name in the data."""


def names(artifact: Artifact) -> list[str] | None:
    """Return the names that clients have in the data, (m,); None if they have none, or the names are not known."""
    known = list(codebook.read(artifact).clients)
    return None if all(_NUMBERED.fullmatch(name) for name in known) else known


def identities(
    artifacts: Mapping[int, Artifact], samples: Mapping[int, Sequence[NDArray[np.int64]]]
) -> dict[int, NDArray[np.str_]]:
    """Return who each client is, (m,) by seed; the same word under two seeds is the same client.

    A client that has a name in the data (a writer, a hospital) is the same wherever that name occurs. Others are the
    same only in the same partition, or, if that does not exist any more, where all clients have the same samples:
    ``samples`` has for each seed their ids and offsets.
    """
    by_seed: dict[int, NDArray[np.str_]] = {}
    for seed, artifact in artifacts.items():
        known = names(artifact)
        partition = _partition(artifact)
        twin = next(s for s in samples if all(map(np.array_equal, samples[s], samples[seed])))
        group = f"samples of seed {twin}" if partition is None else partition.manifest.fingerprint
        count = len(samples[seed][1]) - 1
        by_seed[seed] = np.asarray(known if known is not None else [f"{group}/{client}" for client in range(count)])
    return by_seed


def is_one_partition(artifact: Artifact) -> bool:
    """Return whether all inputs of an artifact are known to be of one partition.

    A client's number then means the same under every seed.
    """
    fingerprints: set[str] = set()
    for reference in artifact.manifest.inputs:
        try:
            partition = ancestor(follow(artifact, reference), "partition")
        except InputError:
            return False
        fingerprints.add("" if partition is None else partition.manifest.fingerprint)
    return len(fingerprints) == 1


def _partition(artifact: Artifact) -> Artifact | None:
    try:
        return ancestor(artifact, "partition")
    except GoneError:
        return None  # it has moved; scores need nothing of it but names
