"""The interface of tables in files, the spellings of missing values, and hints for cells that are not numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pflcli.wording import listed

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""The spellings of a missing number. In labels and clients, only an empty cell and NaN are missing."""

HINTS = {
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*": "a date: make it a number, such as days since a day you choose",
    r"\d{1,2}:\d{2}.*": "a time: make it a number, such as minutes since midnight",
    r"-?\d{1,3}(,\d{3})+(\.\d*)?": "write thousands without a comma",
    r"-?\d+,\d+": "write 3.5, not 3,5",
    r"-?[\d.]+ ?%": "write it without %",
}
"""Hints for a cell that is not a number, by its pattern."""


class Table(Protocol):
    """A table on disk; columns are known by their position, rows count from 0."""

    @property
    def name(self) -> str:
        """The file's name, for messages."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position: ``texts`` as text, ``others`` with inferred types."""

    def place(self, row: int) -> str:
        """Return the place of a row in the file, for messages."""

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""


def place_of(table: Table, row: int, column: str) -> str:
    """Return the place of a cell, for messages."""
    return f"{table.place(row)}, column '{column}'"


def listed_columns(columns: Sequence[str]) -> str:
    """Return the first names of columns, for messages."""
    return listed([column for column in columns if column], most=10)
