"""The predictions of other tools with which claims compare methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.core.errors import UsageError
from pflcli.core.wording import listed

Imported = dict[str, list[Artifact]]
"""Predictions by the name that claims give them."""


def read(named: Mapping[str, tuple[str, ...]], partitions: Mapping[int, Path]) -> Imported:
    """Open predictions; ``partitions`` are the folders of an experiment's partitions by seed.

    Raises UsageError for predictions of a method of pfl, for those of another partition or with another seed than that
    of their partition, and for two of one partition.
    """
    seeds = {open_one(path, "partition").manifest.fingerprint: seed for seed, path in partitions.items()}
    found: Imported = {}
    for name, folders in named.items():
        taken = dict[int, str]()
        for folder in folders:
            artifact = open_one(folder, "predictions")
            if not artifact.manifest.summary.get("foreign"):
                raise UsageError(f"{folder} has predictions of a method of pfl", "name the method in the claim")
            parent = ancestor(artifact, "partition")
            seed = None if parent is None else seeds.get(parent.manifest.fingerprint)
            if seed is None:
                paths = listed([str(path) for path in partitions.values()], most=5)
                raise UsageError(
                    f"{folder} is about another partition than those of the experiment",
                    f"pfl import-predictions FILE --like PARTITION, one of {paths}",
                )
            if artifact.manifest.request["seed"] != seed:
                raise UsageError(
                    f"{folder} has the seed {artifact.manifest.request['seed']}, and its partition {seed}",
                    f"pfl import-predictions --seed {seed}",
                )
            if seed in taken:
                raise UsageError(f"{taken[seed]} and {folder} are about one partition", "leave out one of them")
            taken[seed] = folder
            found.setdefault(name, []).append(artifact)
    return found
