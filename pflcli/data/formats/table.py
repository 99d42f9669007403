"""What a table is, whichever file it comes from: its columns and cells, and what stands for a missing value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pflcli.wording import listed

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""What stands for a missing number. In labels and clients, only an empty cell and NaN do."""

HINTS = {
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*": "a date: make it a number, such as days since a day you choose",
    r"\d{1,2}:\d{2}.*": "a time: make it a number, such as minutes since midnight",
    r"-?\d{1,3}(,\d{3})+(\.\d*)?": "write thousands without a comma",
    r"-?\d+,\d+": "write 3.5, not 3,5",
    r"-?[\d.]+ ?%": "write it without %",
}
"""What to do about a cell that is not a number, by what it looks like."""


class Table(Protocol):
    """A table on disk; columns are known by their position, rows count from 0."""

    @property
    def name(self) -> str:
        """The file's name, for messages."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position: ``texts`` as text, ``others`` as what they look like."""

    def place(self, row: int) -> str:
        """Say where a row stands, as the user counts."""

    def cell(self, row: int, column: int) -> str:
        """Return what stands in a cell."""


def place_of(table: Table, row: int, column: str) -> str:
    """Return where a cell stands, in words."""
    return f"{table.place(row)}, column '{column}'"


def listed_columns(columns: Sequence[str]) -> str:
    """Return the first names of columns, in words."""
    return listed([column for column in columns if column], most=10)
