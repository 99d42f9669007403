"""The runs of a comparison, by the rows of its table."""

from __future__ import annotations

from pflcli.artifacts.reader import Artifact
from pflcli.evaluation.lineage import Lineage
from pflcli.evaluation.stored_comparison import Comparison


def label_runs(comparison: Comparison, lineage: Lineage) -> list[tuple[str, int, Artifact]]:
    """Return label, seed and predictions of each existing run."""
    existing = {item.manifest.fingerprint: item for item in lineage.artifacts}
    labelled = []
    for reference in comparison.artifact.manifest.inputs:
        run = existing.get(reference.fingerprint)
        if run is None or run.kind != "predictions":
            continue
        seed = int(run.manifest.request["seed"])
        label = _find_row(reference.role, str(run.manifest.request["method"]), comparison)
        if label is not None:
            labelled.append((label, seed, run))
    return labelled


def _find_row(role: str, method: str, comparison: Comparison) -> str | None:
    """Return the row of the table that a run belongs to: recorded by a comparison, else the only row of its method."""
    label = role.rpartition(", seed ")[0]
    if label in comparison.methods:
        return label
    rows = [row["label"] for row in comparison.rows if row.get("method", row["label"]) == method]
    return rows[0] if len(rows) == 1 else None


def rounds_source(run: Artifact, lineage: Lineage) -> Artifact | None:
    """Return the artifact with the rounds of a run: itself, or the backbone of FedAvg; None if it has none.

    A method that adapts after the rounds has none.
    """
    if "rounds.csv" in run.manifest.files:
        return run
    return lineage.nearest(run, "backbone") if run.manifest.request["method"] == "fedavg" else None
