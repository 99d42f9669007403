"""A tuning: the trials of one method, their scores on validation samples, and the best trial.

``trials.json``: a row per trial. ``table.csv`` and ``table.md``: the same as tables. ``best.toml``: the best trial as a
file for ``--config``. The trials are predictions in the folder ``trials/`` next to it.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from annotated_types import Len
from typing_extensions import TypedDict

from pflcli.artifacts.kinds import describe_count, describe_name, describe_percent
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

SCHEMA = 1
MADE_BY = "pfl tune METHOD SOURCE -o DIR"

TRIALS = "trials.json"


class _Trial(TypedDict):
    trial: int
    path: str
    fingerprint: str | None
    values: dict[str, Any]
    validation_accuracy: float | None
    bottom_decile: float | None
    seconds: float | None
    problem: str
    rounds: NotRequired[int]
    """after which it was scored, if only the best trials ran to the end"""


class _Tuning(TypedDict):
    method: str
    metric: NotRequired[str]
    samples: int
    clients: int
    best: int
    borders: NotRequired[dict[str, str]]
    """the keys of which the best trial has the ``smallest`` or ``largest`` value tried, though the option has others"""
    trials: Annotated[list[_Trial], Len(1)]


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the ``trials`` of a tuning in order and the number of the ``best``; raises InputError if damaged."""
    trials: dict[str, Any] = artifact.json(TRIALS, _Tuning)
    return trials


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    read(artifact)
    for row in artifact.table("table.csv"):
        with artifact.parsing("table.csv"):
            int(row["trial"])


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    return [
        describe_name(manifest.request.get("method")),
        describe_count(summary.get("trials"), "trial"),
        describe_name(manifest.request.get("metric"), "by"),
        describe_percent("validation accuracy", summary.get("validation_accuracy")),
    ]
