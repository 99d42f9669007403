"""The tables below that of methods, from stored ``metrics``: prediction sets, and the scores that plug-ins add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pflcli.core import plugins
from pflcli.evaluation.presentation import prediction_sets
from pflcli.evaluation.presentation.tables import Table


def list_tables(metrics: Mapping[str, Any]) -> list[tuple[str, Table, str]]:
    """Return the title of each table, the table, and the file with all its numbers."""
    sets = [(prediction_sets.title(metrics), prediction_sets.table(metrics), "sets.csv")] if "sets" in metrics else []
    return [*sets, *(table for added in _load("tables") for table in added(metrics))]


def list_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return the notes on these tables."""
    return [*prediction_sets.notes(metrics), *(line for added in _load("notes") for line in added(metrics))]


def list_numbers(metrics: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Return the headings and rows of the CSV files that plug-ins add, by name."""
    return {name: cells for added in _load("numbers") for name, cells in added(metrics).items()}


def _load(fact: str) -> Iterator[Any]:
    return (plugins.load("SCORES", name, fact) for name in plugins.added("SCORES"))
