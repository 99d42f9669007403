"""An audit: what an attacker learns from stored predictions.

``audit.json``: a row per attack, with what the attacker sees, and warnings. ``table.csv``: the same as a table.
``clients.csv``: a row per attack and client, the most exposed clients first. ``audit.png``: the ROC curves of the
attacks and the clients; ``audit.vl.json``: its Vega-Lite specification. If classes were inverted, ``classes.csv`` with
a row per picture, and ``classes.png``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pflcli.artifacts.kinds._wording import count, word
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = 1
MADE_BY = "pfl audit PREDICTIONS -o DIR"

AUDIT = "audit.json"
TABLE, CLIENTS, CLASSES = "table.csv", "clients.csv", "classes.csv"
FIGURE = "audit"
PICTURE = f"{FIGURE}.png"


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the attacks of an audit with their results; raises InputError if the file is damaged."""
    content = artifact.json(AUDIT)
    with artifact.parsing(AUDIT):
        _schema().validate_python(content, strict=True)
    results: dict[str, Any] = content
    return results


@cache
def _schema() -> TypeAdapter[Any]:
    """Return the fields that tables and sentences read; others are allowed."""
    from annotated_types import Len
    from pydantic import TypeAdapter
    from typing_extensions import TypedDict

    class Row(TypedDict):
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

    class Canaries(TypedDict):
        canaries: int
        epsilon_low: float
        accounted_epsilon: float | None
        delta: float
        confidence: float
        contradicts: bool

    class NoisyVotes(TypedDict):
        epsilon_per_query: float
        queries: int
        epsilon: float
        epsilon_at_delta: float
        delta: float

    class Audit(TypedDict):
        method: str
        attacks: Annotated[list[Row], Len(1)]
        canaries: NotRequired[Canaries]
        noisy_votes: NotRequired[NoisyVotes]
        warnings: list[str]

    return TypeAdapter(Audit)


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    read(artifact)
    for name in (TABLE, CLIENTS, CLASSES):
        if name in artifact.manifest.files:
            artifact.table(name)


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    auc = summary.get("auc")
    return [
        word(summary.get("method")),
        count(summary.get("clients"), "client"),
        word(summary.get("attack"), "strongest attack"),
        f"AUC {auc:.2f}" if isinstance(auc, float) else "",
    ]
