"""Reads comparisons, evaluations and single runs as records for experiment trackers."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pandas as pd

from pflcli.artifacts.reader import Artifact
from pflcli.core.metrics import catalogue
from pflcli.evaluation import lineage as lineages
from pflcli.evaluation.lineage import Lineage
from pflcli.evaluation.stored_comparison import KINDS as COMPARISONS
from pflcli.evaluation.stored_comparison import Comparison, read_comparison
from pflcli.plugins.tracking import Record, flatten

KINDS = (*COMPARISONS, "predictions", "backbone")
_ROUNDS = "rounds.csv"


def read(artifact: Artifact) -> list[Record]:
    """Return the records of an artifact: a comparison and all its runs, or one run without scores.

    A run that no longer exists has no settings and rounds. Raises InputError if a file is damaged.
    """
    lineage = lineages.trace(artifact)
    if artifact.kind not in COMPARISONS:
        path = artifact.path.resolve()
        return [_read_run(artifact, path.parent.name, path.name, lineage)]
    comparison = read_comparison(artifact)
    table = pd.read_csv(io.BytesIO(artifact.read("clients.csv")), dtype={"method": str, "name": str})
    return [_summarize(comparison, lineage), *_read_runs(comparison, lineage, table)]


def _summarize(comparison: Comparison, lineage: Lineage) -> Record:
    """Return the record of a comparison as a whole: the metrics of all methods, the table and the pictures."""
    artifact = comparison.artifact
    scores = {
        f"{name}/{row['label']}": float(metric["value"])
        for row in comparison.rows
        for name, metric in row["metrics"].items()
        if metric["value"] is not None and math.isfinite(metric["value"])
    }
    answer = "\n\n".join(comparison.answer)
    texts = {"answer": answer, "commands": "\n".join(f"    {line}" for line in lineages.list_commands(lineage))}
    if "table.md" in artifact.manifest.files:
        texts["table"] = artifact.read("table.md").decode("utf-8")
    return Record(
        artifact.manifest.fingerprint,
        comparison.title,
        artifact.kind,
        flatten({"dataset": lineage.dataset or None, **artifact.manifest.request}),
        scores=scores,
        pictures={name: artifact.read(name) for name in sorted(artifact.manifest.files) if name.endswith(".png")},
        texts=texts,
    )


def _read_runs(comparison: Comparison, lineage: Lineage, table: pd.DataFrame) -> list[Record]:
    """Return the record of each run of a comparison."""
    existing = {
        run.manifest.fingerprint: (label, seed, run) for label, seed, run in lineages.label_runs(comparison, lineage)
    }
    records = []
    for reference in comparison.artifact.manifest.inputs:
        if reference.kind != "predictions":
            continue
        label, _, word = reference.role.rpartition(", seed ")
        label, seed, run = existing.get(reference.fingerprint) or (label, int(word) if word.isdecimal() else -1, None)
        if label not in comparison.methods:
            continue
        rows = table[(table["method"] == label) & (table["seed"] == seed)]
        scores, clients = _score_clients(rows, str(comparison.metrics["split"]))
        name = f"{label}, seed {seed}"
        if run is None:
            facts = {"method": label, "seed": seed}
            record = Record(reference.fingerprint, comparison.title, name, flatten(facts))
        else:
            record = _read_run(run, comparison.title, name, lineage)
        records.append(replace(record, scores=scores, clients=clients))
    return records


def _read_run(run: Artifact, group: str, name: str, lineage: Lineage) -> Record:
    """Return the settings and rounds of predictions or of a backbone."""
    source = run if run.kind == "backbone" else lineages.rounds_source(run, lineage)
    settings = flatten({"dataset": lineage.dataset or None, **run.manifest.request})
    rounds = {} if source is None or _ROUNDS not in source.manifest.files else _read_rounds(source)
    return Record(run.manifest.fingerprint, group, name, settings, rounds)


def _read_rounds(source: Artifact) -> dict[int, dict[str, float]]:
    """Return all finite measurements of each round."""
    rounds: dict[int, dict[str, float]] = {}
    for row in source.table(_ROUNDS):
        with source.parsing(_ROUNDS):
            values = {name: float(value) for name, value in row.items() if name != "round" and value not in ("", None)}
            rounds[int(row["round"])] = {name: value for name, value in values.items() if math.isfinite(value)}
    return rounds


def _score_clients(rows: pd.DataFrame, split: str) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the metrics that summarize the clients of one run, named as in the table, and the scores of clients."""
    counts = rows[f"n_{split}"].to_numpy(np.float64)
    by_client = {
        name: rows[name].to_numpy(np.float64) for name in rows.columns if name == "gain" or name in catalogue.METRICS
    }
    scores: dict[str, float] = {}
    for name, metric in catalogue.METRICS.items():
        values = by_client.get(metric.score or name)
        if metric.over is not None and values is not None and not np.isnan(values).all():
            scores[name] = float(metric.over(values, counts))
    clients = {name: values[np.isfinite(values)].tolist() for name, values in by_client.items()}
    finite = {name: value for name, value in scores.items() if math.isfinite(value)}
    return finite, {name: values for name, values in clients.items() if values}
