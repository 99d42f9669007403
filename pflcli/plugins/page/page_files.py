"""The files of a page: ``report.html``, and ``report_data/`` beside it with all its numbers as CSV and JSON."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from pflcli import __version__
from pflcli.artifacts import csv_file, disk, plain_output
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.evaluation import coverage
from pflcli.evaluation.presentation import further_tables, tables
from pflcli.evaluation.presentation.section import Section as Other
from pflcli.evaluation.scoring import replace_nonfinite
from pflcli.plugins.page import html
from pflcli.plugins.page.html import Section

_INDEX = "report.json"
_INDEX_MARK = '{\n "generator": "pfl report'
"""The first characters of every ``report.json``."""
_MARK_BYTES = 400
"""Number of leading bytes that contain the mark of a page."""


def data_folder(out: Path) -> Path:
    """Return the data folder beside a page, such as ``report_data`` beside ``report.html``."""
    return out.with_name(f"{out.stem}_data")


def require_writable(out: Path, *, force: bool) -> None:
    """Raise UsageError if ``out`` is not an HTML file name, ConflictError if it would replace a foreign file.

    A page that ``pfl report`` wrote may be replaced, other files only with ``force``.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{out} does not end in .html", f"--out {shlex.quote(str(out))}.html")
    folder = data_folder(out)
    if out.is_dir() or (os.path.lexists(out) and not out.is_file()):
        raise ConflictError(f"{out} is not a file", "choose another name for --out")
    if os.path.lexists(folder) and not folder.is_dir():
        raise ConflictError(
            f"{folder} is not a folder, but the page's data must go there", "choose another name for --out"
        )
    if force:
        return
    if out.exists() and html.GENERATOR not in _read_beginning(out):
        raise ConflictError(
            f"{out} exists, and pfl report did not write it", "--force replaces it, or choose another name for --out"
        )
    if folder.is_dir() and any(folder.iterdir()) and not _read_beginning(folder / _INDEX).startswith(_INDEX_MARK):
        raise ConflictError(
            f"{folder} exists, and pfl report did not write it",
            "--force writes the page's data into it, or choose another name for --out",
        )


def write(out: Path, page: str, files: Mapping[str, bytes]) -> None:
    """Write the data in ``files`` and then the page, each file atomically; raises InputError on failure.

    Data files of an earlier page that are no longer needed are removed; other files in the folder stay.
    """
    folder = data_folder(out)
    earlier = _list_earlier(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=lambda name: name != _INDEX):  # the index first: it marks the folder as pfl's
            plain_output.replace_file(folder / name, files[name])
        for name in earlier - {*files}:
            (folder / name).unlink(missing_ok=True)
        plain_output.replace_file(out, page.encode(errors="replace"))  # names of folders may be invalid UTF-8
    except OSError as error:
        raise disk.write_error(f"cannot write {out}", out.parent, error, len(page)) from None


def _list_earlier(folder: Path) -> set[str]:
    """Return the names of the data files of the earlier page."""
    if not _read_beginning(folder / _INDEX).startswith(_INDEX_MARK):
        return set()
    try:
        names = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["files"]
        return {name for name in names if isinstance(name, str) and Path(name).name == name}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _read_beginning(path: Path) -> str:
    if not path.is_file():  # opening a pipe would block
        return ""
    try:
        with path.open("rb") as file:
            return file.read(_MARK_BYTES).decode(errors="replace")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def build_files(sections: Sequence[Section], others: Sequence[tuple[str, Other]]) -> dict[str, bytes]:
    """Return the files by name: ``report.json``, and CSV files of each comparison and each of the ``others`` by kind.

    Comparison N has ``N-methods.csv``, ``N-clients.csv`` and ``N-rounds.csv``, with prediction sets also ``N-sets.csv``
    and ``N-sets_clients.csv``, and with scores by group ``N-groups.csv``. Other artifacts have files such as
    ``KIND-N-table.csv``.
    """
    content: dict[str, bytes] = {}
    for number, section in enumerate(sections, 1):
        artifact = section.comparison.artifact
        content[f"{number}-methods.csv"] = csv_file.encode_rounded(*tables.list_numbers(section.comparison.metrics))
        content[f"{number}-clients.csv"] = artifact.read("clients.csv")
        if "sets" in section.comparison.metrics:
            for name in (coverage.TABLE, coverage.CLIENTS):
                content[f"{number}-{name}"] = artifact.read(name)
        for name in further_tables.list_numbers(section.comparison.metrics):
            content[f"{number}-{name}"] = artifact.read(name)
        if section.runs.curves:
            content[f"{number}-rounds.csv"] = csv_file.encode(_ROUNDS, _list_rounds(section))
    numbers, entries = Counter[str](), dict[str, list[Mapping[str, Any]]]()
    for kind, other in others:
        numbers[kind] += 1
        content |= {f"{kind}-{numbers[kind]}-{name}": data for name, data in other.files.items()}
        entries.setdefault(other.key, []).append(other.entry)
    content = {name: csv_file.escape_formulas(text) for name, text in content.items()}  # all files so far are CSV
    index = {
        "generator": f"pfl report {__version__}",
        "files": sorted(content),
        "comparisons": [_describe_section(section) for section in sections],
        **{key: entries[key] for key in entries if key not in ("generator", "files", "comparisons")},
    }
    content[_INDEX] = (json.dumps(replace_nonfinite(index), indent=1, allow_nan=False) + "\n").encode()
    return content


_ROUNDS = ["method", "round", "validation_accuracy", "test_accuracy", "megabytes", "client_seconds", "reported"]


def _list_rounds(section: Section) -> list[list[Any]]:
    """Return a row for each measured round of each method, and one for the round that it reports."""
    return [
        [label, *(None if math.isnan(value) else value for value in astuple(point)), reported]
        for label, curve in section.runs.curves.items()
        for reported, points in ((0, curve.points), (1, [curve.end]))
        for point in points
    ]


def _describe_section(section: Section) -> dict[str, Any]:
    """Return the entry of a comparison in ``report.json``."""
    comparison, lineage = section.comparison, section.lineage
    return {
        "title": comparison.title,
        "answer": comparison.answer,
        "notes": [*comparison.notes, *section.runs.remarks],
        "metrics": dict(comparison.metrics),
        "commands": [*section.commands],
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
