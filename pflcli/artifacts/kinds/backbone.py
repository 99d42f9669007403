"""The backbone: ``weights.safetensors`` (``body.*``, ``head.*``) and ``rounds.csv``, one row per round.

Row 0 exists if the method communicated before its first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflcli.artifacts.kinds import describe_count, describe_name, describe_percent
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.core.errors import InputError

SCHEMA = 1
MADE_BY = "pfl train-global PARTITION -o DIR"

WEIGHTS = "weights.safetensors"
ROUNDS = "rounds.csv"


def read_rounds(artifact: Artifact) -> list[dict[str, str]]:
    """Return the rows of ``rounds.csv`` of a backbone or predictions; raises InputError if a value is not a number."""
    rows = artifact.table(ROUNDS)
    with artifact.parsing(ROUNDS):
        for row in rows:
            [int(row[column]) for column in ("round", "bytes_up", "bytes_down", "bytes_peer")]
            [float(value) for value in row.values() if value]
            float(row["seconds"])
    return rows


def read_tensors(artifact: Artifact, name: str = WEIGHTS, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read named torch tensors from a safetensors file.

    Raises InputError if it is damaged, if a number is not finite, or if names, shapes or types differ from those of
    ``like``, unless that is None.
    """
    from safetensors.torch import load

    content = artifact.read(name)
    with artifact.parsing(name):
        loaded = dict(load(content))
        not_finite = [key for key, value in loaded.items() if not value.isfinite().all()]
    if not_finite:
        raise InputError(f"{artifact.path / name} is damaged: {not_finite[0]} is not finite")
    if like is not None:
        require_alike(loaded, like, f"{artifact.path / name}")
    return loaded


def require_alike(tensors: Mapping[str, Any], like: Mapping[str, Any], where: str) -> None:
    """Raise InputError if the names, shapes or types of the tensors in the file ``where`` are not those of ``like``."""
    actual, expected = ({key: (value.dtype, value.shape) for key, value in side.items()} for side in (tensors, like))
    differing = sorted(key for key in {*actual, *expected} if actual.get(key) != expected.get(key))
    if differing:
        raise InputError(
            f"{where} does not fit its model: {len(differing)} names, shapes or types differ, such as {differing[0]}"
        )


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    for name in artifact.manifest.files:
        if name.endswith(".safetensors"):
            read_tensors(artifact, name)


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    request, summary = manifest.request, manifest.summary
    return [
        describe_name(request.get("method")),
        describe_name(request.get("settings", {}).get("model"), "model"),
        describe_count(summary.get("rounds"), "round"),
        describe_percent("validation accuracy", summary.get("validation_accuracy")),
    ]
