"""Tables: which columns are features, and what in them is not a number. CSV and Parquet differ in reading alone."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError, UsageError
from pflcli.readers import NOBODY, Raw, text, unknown

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""What stands for a missing number. In labels and clients, only an empty cell and NaN do."""


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


def read(table: Table, client: str | None, label: str | None, features: str | Sequence[str] | None) -> Raw:
    """Read the samples of a table.

    Without ``features``, these are all columns of numbers but the client's and the label's. Raises UsageError for
    columns that contradict one another, InputError for a column that is not there or a cell that is not a number.
    """
    columns = table.columns
    twice = [column for column, count in Counter(filter(None, columns)).items() if count > 1]
    if twice:
        raise InputError(f"{table.name}: two columns are called '{twice[0]}'", "rename one in the first line")
    if client is None:
        raise UsageError(
            "--client is missing: which column says whose a sample is?",
            f"--client COL, one of: {_some(columns)}",
            f"--client {NOBODY} where nobody holds the samples yet",
        )
    if label is None:
        raise UsageError(
            "--label is missing: which column holds the class to learn?", f"--label COL, one of: {_some(columns)}"
        )
    whose = None if client == NOBODY and NOBODY not in columns else _find(table, client)
    target = _find(table, label)
    if whose == target:
        raise UsageError(f"column '{label}' cannot be both --client and --label")
    keys = [target] if whose is None else [target, whose]
    asked = None if features is None else _asked(table, features, columns[target], client)
    candidates = [at for at, column in enumerate(columns) if column and at not in keys] if asked is None else asked
    loaded = table.load(keys, candidates)
    chosen, values, skipped = [], [], []
    for at in candidates:
        numbers, strange = _numbers(loaded.pop(at))
        known = np.count_nonzero(~np.isnan(numbers)) + strange.sum()
        # A column that is mostly numbers is meant to be a feature: a slip in it must not lose it in silence.
        if asked is None and (not known or strange.sum() > known / 2):
            skipped.append(columns[at])
            continue
        if strange.any():
            raise _not_a_number(table, int(np.argmax(strange)), at)
        chosen.append(at)
        values.append(numbers)
    if not chosen:
        raise InputError(f"{table.name} has no column of numbers beside client and label")
    return Raw(
        x=np.column_stack(values),
        label=text(loaded[target].to_numpy(object)),
        owner=None if whose is None else text(loaded[whose].to_numpy(object)),
        place=lambda row, role, at: _place(
            table, row, {"label": label, "client": client}.get(role) or columns[chosen[at[0]]]
        ),
        features=tuple(columns[at] for at in chosen),
        remarks=(f"left out, not numbers: {_some(skipped)}",) if skipped else (),
    )


def _place(table: Table, row: int, column: str) -> str:
    return f"{table.place(row)}, column '{column}'"


def _some(columns: Sequence[str]) -> str:
    named = [column for column in columns if column]
    return ", ".join(named[:10]) + (f", ... ({len(named)} in all)" if len(named) > 10 else "")


def _find(table: Table, column: str) -> int:
    if column not in table.columns:
        error = unknown(table.name, "column", column, [name for name in table.columns if name])
        if all(_is_number(name) for name in table.columns if name):
            error.fix = (*error.fix, "its first line holds numbers: are the names of columns missing?")
        raise error
    return table.columns.index(column)


def _asked(table: Table, features: str | Sequence[str], label: str, client: str) -> list[int]:
    names = next(csv.reader([features], skipinitialspace=True), []) if isinstance(features, str) else list(features)
    names = [name.strip() for name in names]
    if not any(names):
        raise UsageError("--features names no column", f"--features COL,COL of: {_some(table.columns)}")
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"column '{name}' is twice in --features")
        if name in (label, client):
            role = "label" if name == label else "client"
            raise UsageError(f"column '{name}' cannot be both --{role} and one of --features")
    return [_find(table, name) for name in names]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _numbers(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a column's numbers (n,), NaN where there is none, and where something else stands."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64), np.zeros(len(column), dtype=np.bool_)
    if column.dtype.kind in "mMc":
        return np.full(len(column), np.nan), column.notna().to_numpy(np.bool_)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    # Again, as pandas leaves these where integers are beyond 64 bits.
    empty = (column.isna() | column.astype(str).str.strip().isin(MISSING)).to_numpy(np.bool_)
    return numbers, np.isnan(numbers) & ~empty


_HINTS = {
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*": "a date: make it a number, such as days since a day you choose",
    r"\d{1,2}:\d{2}.*": "a time: make it a number, such as minutes since midnight",
    r"-?\d{1,3}(,\d{3})+(\.\d*)?": "write thousands without a comma",
    r"-?\d+,\d+": "write 3.5, not 3,5",
    r"-?[\d.]+ ?%": "write it without %",
}


def _not_a_number(table: Table, row: int, column: int) -> InputError:
    cell = table.cell(row, column)
    hints = [hint for pattern, hint in _HINTS.items() if re.fullmatch(pattern, cell.strip())]
    line = " ".join(cell.split())
    shown = line if len(line) <= 40 else line[:37] + "..."
    return InputError(
        f"{_place(table, row, table.columns[column])}: '{shown}' is not a number",
        *(hints or ["mend it, or turn words into numbers (such as a column of 0 and 1 for each)"]),
        "or name the --features to take, without this column",
    )
