"""An audit: what an attacker learns from stored predictions.

``audit.json``: a row per attack, with what the attacker sees, and warnings. ``table.csv``: the same as a table.
``clients.csv``: a row per attack and client, the most exposed clients first. ``audit.png``: the ROC curves of the
attacks and the clients; ``audit.vl.json``: its Vega-Lite specification.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from annotated_types import Len
from typing_extensions import TypedDict

from pflcli.artifacts.kinds import describe_count, describe_name
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

SCHEMA = 1
MADE_BY = "pfl audit PREDICTIONS -o DIR"

AUDIT = "audit.json"
TABLE, CLIENTS = "table.csv", "clients.csv"
FIGURE = "audit"
PICTURE = f"{FIGURE}.png"


class _Row(TypedDict):
    attack: str
    sees: str
    auc: float
    auc_low: float
    auc_high: float
    tpr_at_1_percent: float | None
    tpr_at_0_1_percent: float | None
    members: int
    clients: int
    undefined: int
    worst_client_auc: float | None
    above_chance: int


class _Canaries(TypedDict):
    canaries: int
    epsilon_low: float
    accounted_epsilon: float | None
    delta: float
    confidence: float
    contradicts: bool


class _NoisyVotes(TypedDict):
    epsilon_per_query: float
    queries: int
    epsilon: float
    epsilon_at_delta: float
    delta: float
    random_numbers: NotRequired[str]


class _Audit(TypedDict):
    """The fields that tables and sentences read; others are allowed."""

    method: str
    attacks: Annotated[list[_Row], Len(1)]
    canaries: NotRequired[_Canaries]
    noisy_votes: NotRequired[_NoisyVotes]
    warnings: list[str]


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the attacks of an audit with their results; raises InputError if the file is damaged."""
    results: dict[str, Any] = artifact.json(AUDIT, _Audit)
    return results


check = read


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    auc = summary.get("auc")
    return [
        describe_name(summary.get("method")),
        describe_count(summary.get("clients"), "client"),
        describe_name(summary.get("attack"), "strongest attack"),
        f"AUC {auc:.2f}" if isinstance(auc, float) else "",
    ]
