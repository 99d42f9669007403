"""The clients of stored predictions: their names, which are the same under several seeds, and their table."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.reader import Artifact, ancestor, follow
from pflcli.core.errors import GoneError, InputError

if TYPE_CHECKING:
    import pandas as pd

_NUMBERED = re.compile(r"client-\d+")
"""Names that a partition gives to clients without names in the data."""


def read_names(artifact: Artifact) -> list[str] | None:
    """Return the names (m,) of the clients in the data; None if they are unnamed or unknown."""
    known = list(codebook.read(artifact).clients)
    return None if are_numbered(known) else known


def are_numbered(names: Sequence[str]) -> bool:
    """Return whether these are names that a partition gives to clients without names in the data."""
    return all(_NUMBERED.fullmatch(name) for name in names)


def read_client_table(artifact: Artifact) -> pd.DataFrame:
    """Return ``clients.csv`` of an evaluation or a comparison; raises InputError if it is damaged."""
    import pandas as pd

    text = artifact.read("clients.csv")
    with artifact.parsing("clients.csv"):
        return pd.read_csv(
            io.BytesIO(text),
            dtype={"method": str, "name": str},
            keep_default_na=False,
            na_values=[""],
            encoding="utf-8",
        )


def identify_clients(
    artifacts: Mapping[int, Artifact], samples: Mapping[int, Sequence[NDArray[np.int64]]]
) -> dict[int, NDArray[np.str_]]:
    """Return an identifier of each client, (m,) by seed; the same client has the same identifier under all seeds.

    A client with a name in the data (a writer, a hospital) is identified by this name. Other clients are the same only
    in the same partition or, if it no longer exists, if all clients have the same ``samples`` (ids and offsets, by
    seed).
    """
    by_seed: dict[int, NDArray[np.str_]] = {}
    for seed, group in identify_partitions(artifacts, samples).items():
        known, count = read_names(artifacts[seed]), len(samples[seed][1]) - 1
        by_seed[seed] = np.asarray(known if known is not None else [f"{group}/{client}" for client in range(count)])
    return by_seed


def identify_partitions(
    artifacts: Mapping[int, Artifact], samples: Mapping[int, Sequence[NDArray[np.int64]]]
) -> dict[int, str]:
    """Return the fingerprint of the partition of each seed or, if it no longer exists, the seed with these samples."""
    known = {}
    for seed, artifact in artifacts.items():
        partition = read_partition(artifact)
        twin = next(s for s in samples if all(map(np.array_equal, samples[s], samples[seed])))
        known[seed] = f"samples of seed {twin}" if partition is None else partition.manifest.fingerprint
    return known


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


def read_partition(artifact: Artifact) -> Artifact | None:
    """Return the partition of a run; None if it no longer exists."""
    try:
        return ancestor(artifact, "partition")
    except GoneError:
        return None  # the partition was moved or deleted; scores do not need it
