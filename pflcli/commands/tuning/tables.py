"""The files of a tuning: its trials as JSON and as tables, and the best trial as a file for ``--config``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pflcli.artifacts import csv_file
from pflcli.artifacts.kinds import tuning
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.comparison.variants import BACKBONE, TRAINING
from pflcli.commands.tuning.running import Trial
from pflcli.commands.tuning.space import Space
from pflcli.errors import UsageError
from pflcli.evaluation.metrics import catalogue
from pflcli.evaluation.metrics.metric import Metric
from pflcli.wording import as_typed

BEST = "best.toml"
ACCURACY = catalogue.DEFAULT[0]
_SCORES = ("validation_accuracy", "bottom_decile", "seconds", "problem", "path")


def write(
    work: ArtifactWriter,
    out: Path,
    space: Space,
    trials: Sequence[Trial],
    best: Trial,
    metric: str,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Write the files of a tuning for the folder ``out``; all trials share ``options`` and ``settings``.

    ``best`` is the best of ``trials`` by ``metric``.
    """
    rows = [_row(trial, out, metric) for trial in trials]
    record = {
        "method": space.method,
        **({} if metric == ACCURACY else {"metric": metric}),
        "samples": best.samples,
        "clients": best.clients,
        "best": best.number,
        "trials": rows,
    }
    work.write(tuning.TRIALS, (json.dumps(record, indent=1) + "\n").encode())
    keys = [axis.key for axis in space.axes]
    columns = [*([] if metric == ACCURACY else [f"validation_{metric}"]), *_SCORES]
    lines = (
        [row["trial"], *(as_typed(row["values"][key]) for key in keys), *(row[name] for name in columns)]
        for row in rows
    )
    work.write("table.csv", csv_file.content(["trial", *keys, *columns], lines))
    heading, body = readable(record)
    markdown = [heading, ["---:"] * len(heading), *body]
    work.write("table.md", "".join("| " + " | ".join(line) + " |\n" for line in markdown).encode())
    work.write(BEST, _toml(space, best, metric, len(trials), options, settings).encode())


def readable(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of a table for people: the best trial first, failed trials last."""
    metric = catalogue.METRICS.get(record.get("metric", ACCURACY), catalogue.METRICS[ACCURACY])
    score, sign = f"validation_{metric.name}", 1 if metric.lower_is_better else -1
    rows = sorted(
        record["trials"],
        key=lambda row: (row.get(score) is None, sign * (row.get(score) or 0.0), row["trial"]),
    )
    scores = {score: metric, "validation_accuracy": catalogue.METRICS[ACCURACY]}
    keys = list(rows[0]["values"])
    problems = ["problem"] if any(row["problem"] for row in rows) else []
    body = [
        [
            str(row["trial"]),
            *(as_typed(row["values"][key]) for key in keys),
            *(_number(row.get(name), entry) for name, entry in scores.items()),
            _number(row["bottom_decile"], catalogue.METRICS["bottom_decile"]),
            "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
            *(row[name].replace("|", "/") or "-" for name in problems),
        ]
        for row in rows
    ]
    headings = [f"validation {entry.heading}{' %' * entry.percent}" for entry in scores.values()]
    return ["trial", *keys, *headings, "bottom decile %", "seconds", *problems], body


def _number(value: float | None, metric: Metric) -> str:
    return "-" if value is None else f"{100 * value if metric.percent else value:.{metric.digits}f}"


def _row(trial: Trial, out: Path, metric: str) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "path": os.path.relpath(trial.path.resolve(), out.resolve()),
        "fingerprint": trial.fingerprint,
        "values": trial.point,
        f"validation_{metric}": None if trial.score is None else round(trial.score, 6),
        "validation_accuracy": None if trial.accuracy is None else round(trial.accuracy, 6),
        "bottom_decile": None if trial.bottom_decile is None else round(trial.bottom_decile, 6),
        "seconds": round(trial.seconds, 3),
        "problem": trial.problem,
    }


def _toml(
    space: Space, best: Trial, metric: str, count: int, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """Return the best trial in TOML, with a table for each command that takes it."""
    chosen, trained = space.divided(best.point)
    best_options = {**options, **chosen}
    nested = {**best_options, **({TRAINING.removesuffix("."): trained} if trained else {})}
    tables = {
        "personalize": {**settings, **trained, **({"set": best_options} if best_options else {})},
        "compare": {**settings, **({"set": {space.method: nested}} if nested else {})},
    }
    if space.method == BACKBONE:
        tables["train-global"] = tables["personalize"]
    score = f"{catalogue.METRICS[metric].heading} {best.score:.4f}"
    lines = [
        f"# {space.method}: the best of {count} trials on validation samples, with {score}",
        "# over clients weighted by their samples. For --config of the commands below.",
    ]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key.replace('_', '-')} = {_literal(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    """Return a value in TOML; None, which TOML lacks, becomes the word that a user types for it."""
    if value is None:
        return '"none"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_literal(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, str | bool | int | float):
        return json.dumps(value)
    raise UsageError(f"{value!r} has no form in TOML")
