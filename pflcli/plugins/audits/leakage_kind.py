"""Leakage of updates: what the first round of a run reveals about the samples of clients.

``leakage.json``: a row per attacker, and warnings. ``table.csv``: the same as a table. ``clients.csv``: a row per
client, of the server's attack. ``columns.csv``: the errors of recovered samples, a row per column, in its own unit.
"""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Len
from typing_extensions import TypedDict

from pflcli.artifacts.kinds import describe_count, describe_name
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

SCHEMA = 1
MADE_BY = "pfl audit PREDICTIONS -o DIR --updates"

LEAKAGE = "leakage.json"
TABLE, CLIENTS, COLUMNS = "table.csv", "clients.csv", "columns.csv"


class _Row(TypedDict):
    attacker: str
    sees: str
    clients: int
    samples: int
    exact_clients: int | None
    guessed_exact_clients: int | None
    wrong_counts: int | None
    guessed_wrong_counts: int | None
    records: int
    guessed_records: float
    singled_out: int
    singled_out_right: int


class _Leakage(TypedDict):
    """The fields that tables and sentences read; others are allowed."""

    method: str
    tolerance: float
    attackers: Annotated[list[_Row], Len(1)]
    warnings: list[str]


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the attackers of the leakage of updates with their results; raises InputError if the file is damaged."""
    results: dict[str, Any] = artifact.json(LEAKAGE, _Leakage)
    return results


check = read


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    return [
        describe_name(summary.get("method")),
        describe_count(summary.get("clients"), "client"),
        describe_count(summary.get("records"), "recovered sample"),
    ]
