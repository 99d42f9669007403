"""Verdicts on claims, in the folder ``verdicts`` of ``pfl verify``; their inputs are comparisons beside it.

``verdicts.json``: each claim by name, with its verdict in each setting, and every difference with the interval that
decided it. ``table.csv`` and ``table.md``: a row per claim. ``settings.csv``: a row per claim, setting and pair of
methods. ``runs.csv`` and ``clients.csv``: the scores of all comparisons, from which the verdicts follow.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from annotated_types import Len
from typing_extensions import TypedDict

from pflcli.artifacts.kinds import describe_count
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

SCHEMA = 1
MADE_BY = "pfl verify CLAIMS.toml -o DIR"

VERDICTS = "verdicts.json"
TABLE, SETTINGS = "table.csv", "settings.csv"

CONFIRMED, NOT_CONFIRMED, IN_PART, UNDECIDED = "confirmed", "not confirmed", "in part", "undecided"


class _Difference(TypedDict):
    experiment: str
    at: dict[str, Any]
    metric: str
    method: str
    against: str | float
    seeds: list[int]
    difference: float | None
    interval: Annotated[list[float], Len(2, 2)] | None
    level: NotRequired[float | None]
    """the coverage of the interval, which older files lack"""
    floor: NotRequired[float]
    """the least standard deviation between seeds, where all of them have the same difference"""
    holds: bool | None
    reason: str


class _Tuned(TypedDict):
    trials: int
    chosen: dict[str, dict[str, Any]]
    """by seed and method, as the comparison records it"""


class _Cell(TypedDict):
    comparison: str
    experiment: str
    at: dict[str, Any]
    size: dict[str, Any]
    paper: dict[str, Any]
    tuned: NotRequired[_Tuned]
    options: NotRequired[dict[str, str]]
    """the options of methods that differ from the defaults, as typed; older files lack it"""
    warnings: NotRequired[list[str]]
    """what weakens the verdict"""
    verdict: str
    decided_by: _Difference
    differences: Annotated[list[_Difference], Len(1)]


class _Claim(TypedDict):
    says: str
    where: str
    direction: str
    margin: float
    verdict: str
    holds: int
    settings: int
    ranks_first: NotRequired[bool]
    """whether it says that a method scores higher than several others, which counts only if all are tuned"""
    decided_by: _Difference
    cells: Annotated[list[_Cell], Len(1)]


class _Verdicts(TypedDict):
    """The fields that tables and sentences read; others are allowed."""

    claims: dict[str, _Claim]


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the claims by name, with their verdicts; raises InputError if the file is damaged."""
    claims: dict[str, Any] = artifact.json(VERDICTS, _Verdicts)["claims"]
    return claims


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    read(artifact)


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    counts = manifest.summary.get("verdicts", {})
    return [
        describe_count(manifest.summary.get("claims"), "claim"),
        *(f"{counts[name]} {name}" for name in (CONFIRMED, NOT_CONFIRMED, IN_PART, UNDECIDED) if counts.get(name)),
    ]
