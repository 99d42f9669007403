"""The clients of stored predictions: their names, which are the same under several seeds, and their table."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
