"""The folder ``report_data/``: all numbers of a page as CSV and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from pflcli import __version__
from pflcli.artifacts import csv_file
from pflcli.evaluation import coverage
from pflcli.evaluation.page import sentences
from pflcli.evaluation.page.audits import Audit
from pflcli.evaluation.page.html import Section
from pflcli.evaluation.page.runs import Runs
from pflcli.evaluation.presentation import audits, tables

INDEX = "report.json"
MARK = '{\n "generator": "pfl report'
"""The first characters of every ``report.json``."""


def build_files(
    sections: Sequence[Section], runs: Sequence[Runs], shown_audits: Sequence[Audit] = ()
) -> dict[str, bytes]:
    """Return the files by name: ``report.json``, and CSV files of each comparison and audit.

    Comparison N has ``N-methods.csv``, ``N-clients.csv`` and ``N-rounds.csv``; audit N has ``audit-N-table.csv`` and
    ``audit-N-clients.csv``. With prediction sets, comparison N also has ``N-sets.csv`` and
    ``N-sets_clients.csv``.
    """
    content: dict[str, bytes] = {}
    for number, (section, run) in enumerate(zip(sections, runs, strict=True), 1):
        artifact = section.comparison.artifact
        content[f"{number}-methods.csv"] = csv_file.encode_rounded(*tables.list_numbers(section.comparison.metrics))
        content[f"{number}-clients.csv"] = artifact.read("clients.csv")
        if "sets" in section.comparison.metrics:
            for name in (coverage.TABLE, coverage.CLIENTS):
                content[f"{number}-{name}"] = artifact.read(name)
        if run.curves:
            rows = [[label, *point] for label, points in run.curves.items() for point in points]
            content[f"{number}-rounds.csv"] = csv_file.encode(["method", "round", "validation_accuracy"], rows)
    for number, item in enumerate(shown_audits, 1):
        content |= {f"audit-{number}-{name}": text for name, text in item.files.items()}
    content = {name: csv_file.escape_formulas(text) for name, text in content.items()}  # all files so far are CSV
    index = {
        "generator": f"pfl report {__version__}",
        "files": sorted(content),
        "comparisons": [_entry(section) for section in sections],
        "audits": [
            {"title": item.title, "answer": audits.describe_strongest(item.results), **item.results}
            for item in shown_audits
        ],
    }
    content[INDEX] = (json.dumps(_replace_infinite(index), indent=1, allow_nan=False) + "\n").encode()
    return content


def _entry(section: Section) -> dict[str, Any]:
    comparison, lineage = section.comparison, section.lineage
    return {
        "title": comparison.title,
        "answer": sentences.answer(comparison),
        "notes": [*sentences.small_print(comparison), *section.remarks],
        "metrics": dict(comparison.metrics),
        "commands": list(section.commands),
        "artifacts": [
            {
                "path": lineage.name(item),
                "kind": item.kind,
                "fingerprint": item.manifest.fingerprint,
                "request": item.manifest.request,
                "made": item.manifest.made,
            }
            for item in lineage.artifacts
        ],
    }


def _replace_infinite(value: Any) -> Any:
    """Return ``value`` with nan and infinity replaced by null, as JSON has neither."""
    if isinstance(value, dict):
        return {key: _replace_infinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_infinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
