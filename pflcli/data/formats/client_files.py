"""Several tables as one: a file per client, or the parts of one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError, UsageError
from pflcli.data.formats.columns import Table, list_columns
from pflcli.data.formats.delimited import content_suffix


def name_clients(paths: Sequence[Path]) -> list[str]:
    """Return a client's name per file: the file's name, or that of its folder if all files have the same name.

    Raises UsageError if names are not distinct.
    """
    stems = [path.name[: path.name.lower().rindex(content_suffix(path))] for path in paths]
    for names in (stems, [path.absolute().parent.name for path in paths]):
        if len(set(names)) == len(names):
            return names
    twice = next(name for name in stems if stems.count(name) > 1)
    raise UsageError(f"two files are called '{twice}', and each file's name is its client", "rename one")


class ClientFiles:
    """The rows of several tables with the same columns, one table after the other."""

    def __init__(self, paths: Sequence[Path], tables: Sequence[Table], name: str) -> None:
        """Combine ``tables``, read from ``paths``; raises InputError, with the columns that differ."""
        self.name = name
        self.clients = name_clients(paths)
        self._tables = tables
        self.columns = tables[0].columns
        first = {column for column in self.columns if column}
        self._positions: list[list[int]] = []
        for table in tables:
            own = {column for column in table.columns if column}
            if own != first:
                missing, more = sorted(first - own), sorted(own - first)
                raise InputError(
                    f"{table.name} has other columns than {tables[0].name}",
                    *([f"only {tables[0].name} has {list_columns(missing)}"] if missing else []),
                    *([f"only {table.name} has {list_columns(more)}"] if more else []),
                    "rename or add columns; an empty column is a column of missing values",
                )
            twice = next((column for column in own if table.columns.count(column) > 1), None)
            if twice is not None:
                raise InputError(f"{table.name}: two columns are called '{twice}'", "rename one in the first line")
            self._positions.append([table.columns.index(column) for column in self.columns])
        self._first: NDArray[np.int64] = np.zeros(len(tables) + 1, dtype=np.int64)

    @property
    def owner(self) -> NDArray[np.str_]:
        """The client of each row (n,), after ``load``."""
        return np.repeat(np.asarray(self.clients, dtype=np.str_), np.diff(self._first))

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position; a column with words in one file is text in all."""
        import pandas as pd

        def load_all(texts: Sequence[int], others: Sequence[int]) -> list[dict[int, Any]]:
            loaded = []
            for table, at_of in zip(self._tables, self._positions, strict=True):
                series = table.load([at_of[at] for at in texts], [at_of[at] for at in others])
                loaded.append({at: series[at_of[at]] for at in (*texts, *others)})
            return loaded

        pieces = load_all(texts, others)
        mixed = [
            at
            for at in others
            if len({piece[at].dtype.kind in "biuf" for piece in pieces if piece[at].notna().any()}) > 1
        ]
        if mixed:
            for piece, again in zip(pieces, load_all(mixed, []), strict=True):
                piece.update(again)
        sizes = [len(next(iter(piece.values()))) for piece in pieces]
        self._first = np.cumsum([0, *sizes])
        return {at: pd.concat([piece[at] for piece in pieces], ignore_index=True) for at in (*texts, *others)}

    def _locate(self, row: int) -> tuple[int, int]:
        part = int(np.searchsorted(self._first, row, side="right")) - 1
        return part, row - int(self._first[part])

    def place(self, row: int) -> str:
        """Return the file of a row and its place there."""
        part, own = self._locate(row)
        return self._tables[part].place(own)

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""
        part, own = self._locate(row)
        return self._tables[part].cell(own, self._positions[part][column])

    def explain_missing(self, column: str) -> list[str]:
        """Return the options that may find a missing column in the first file."""
        return self._tables[0].explain_missing(column)
