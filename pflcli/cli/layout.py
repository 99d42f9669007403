"""Fit a table to a terminal: wrap texts, then omit columns in a given order; names and numbers are never truncated."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_GAP = 2
_ROOMY, _NARROW = 24, 12
"""A column of text shrinks to the first width before columns are omitted, and to the second one afterwards."""


def fit_table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], width: int, gives_way: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the lines of a table of at most ``width`` characters, and the headings of the omitted columns.

    The columns ``gives_way`` are omitted one after the other until the rest fits. If it never fits, the lines are
    longer than ``width``: nothing is truncated.
    """
    columns = [_Column(place, name, [row[place] for row in rows]) for place, name in enumerate(heading)]
    left_out: list[str] = []
    ahead = [name for name in gives_way if name in heading]
    _shrink(columns, width, _ROOMY)
    while _width(columns) > width and ahead:
        left_out.append(ahead.pop(0))
        columns = [column for column in columns if column.name != left_out[-1]]
        for column in columns:
            column.width = column.natural
        _shrink(columns, width, _ROOMY)
    _shrink(columns, width, _NARROW)
    head = _lines([column.cell(column.name) for column in columns], columns, bottom=True)
    body = [line for row in range(len(rows)) for line in _lines([c.cell(c.cells[row]) for c in columns], columns)]
    rule = "─" * _width(columns)
    return [*head, rule, *body], left_out


class _Column:
    def __init__(self, place: int, name: str, cells: Sequence[str]) -> None:
        self.name, self.cells = name, cells
        self.is_number = bool(cells) and place > 0 and all(cell[:1].isdigit() or cell[:1] in "+-" for cell in cells)
        self.is_text = place > 0 and not self.is_number
        widest = max(map(_length, cells), default=0)
        # The heading of a column of numbers wraps between words; that of a column of texts wraps like the texts.
        words = max(map(_length, name.split()), default=0)
        self.natural = max(widest, words if self.is_number else _length(name))
        self.width = self.natural

    def cell(self, text: str) -> list[str]:
        """Return the lines of a cell."""
        wrapped = textwrap.wrap(text, max(self.width, 1), break_on_hyphens=False)
        return wrapped or [""]

    def pad(self, text: str) -> str:
        """Return one line of a cell, padded to the column's width."""
        space = " " * (self.width - _length(text))
        return space + text if self.is_number else text + space


def _shrink(columns: Sequence[_Column], width: int, least: int) -> None:
    """Narrow the widest texts until the table fits, but none below ``least``."""
    while _width(columns) > width:
        texts = [column for column in columns if column.is_text and column.width > least]
        if not texts:
            return
        max(texts, key=lambda column: column.width).width -= 1


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _lines(cells: Sequence[Sequence[str]], columns: Sequence[_Column], *, bottom: bool = False) -> list[str]:
    height = max(map(len, cells))
    filled = [
        [*[""] * (height - len(cell)), *cell] if bottom else [*cell, *[""] * (height - len(cell))] for cell in cells
    ]
    return [
        (" " * _GAP).join(column.pad(cell[line]) for cell, column in zip(filled, columns, strict=True)).rstrip()
        for line in range(height)
    ]


def _length(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
