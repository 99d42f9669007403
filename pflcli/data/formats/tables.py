"""Tables: which columns are features, and how cells become numbers. ``Table`` is the interface of a file."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import Column
from pflcli.data.formats import (
    ABSENT,
    Like,
    RawSamples,
    Roles,
    is_number,
    missing_name_error,
    normalize_numbers,
    option,
    sort_words,
    to_text,
)
from pflcli.errors import InputError, UsageError, closest
from pflcli.foreign import NAME_LENGTH
from pflcli.wording import listed

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""The spellings of a missing number. In labels and clients, only an empty cell and NaN are missing."""
_MAX_WORDS = 200
"""Maximum number of distinct words in a categorical column."""
_MAX_DETECTED_WORDS = 20
"""Maximum number of distinct words in a column that becomes categorical by itself."""
_MIN_ROWS_PER_WORD = 5
"""Minimum number of rows per distinct word in a column that becomes categorical by itself."""
_HINTS = {
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
        """The names of all columns; empty for a column that cannot be a feature or a role."""

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position: ``texts`` as text, ``others`` with inferred types."""

    def place(self, row: int) -> str:
        """Return the place of a row in the file, for messages."""

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""


def read(
    table: Table,
    roles: Roles,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None = None,
    like: Like | None = None,
) -> RawSamples:
    """Read the samples of a table.

    The default ``features`` are all columns of numbers or few words except those of ``roles``; with ``like``, its
    columns. A column of words becomes one feature per word, and so does a column of numbers in ``categorical``, whose
    value "none" leaves columns of words out. Raises UsageError for columns that contradict one another, InputError for
    a missing column, a cell that is not a number or a word that ``like`` does not have.
    """
    positions = find_positions(table, roles)
    return _read(table, positions, _select(table, features, categorical, like, positions))


def read_features(table: Table, like: Like | None = None) -> RawSamples:
    """Read only the features of samples: the columns of ``like``, or all columns of numbers.

    Raises InputError for a missing column, a cell that is not a number or a word that ``like`` does not have.
    """
    _require_distinct(table)
    return _read(table, {}, _select(table, None, None, like or Like("the model", (), ()), {}))


def find_positions(table: Table, roles: Roles) -> dict[str, int]:
    """Return the position of the column for each role.

    Raises UsageError for an option that is missing or contradicts another, InputError for a missing column.
    """
    columns = table.columns
    _require_distinct(table)
    if roles.client is None:
        raise UsageError(
            "--client is missing: name the column with each sample's client",
            f"--client COL, one of: {list_columns(columns)}",
            f"--client {ABSENT} if samples are not assigned to clients yet",
        )
    if roles.label is None:
        raise UsageError(
            "--label is missing: name the column with the class to learn",
            f"--label COL, one of: {list_columns(columns)}",
        )
    has_clients = roles.client != ABSENT or ABSENT in columns
    client = {"client": _find(table, roles.client)} if has_clients else {}
    positions = {"label": _find(table, roles.label), **client}
    positions |= {role: _find(table, name) for role, name in roles.metadata.items()}
    for role, at in positions.items():
        twice = [other for other in positions if other != role and positions[other] == at]
        if twice:
            raise UsageError(f"column '{columns[at]}' cannot be both {option(twice[0])} and {option(role)}")
    return positions


def _require_distinct(table: Table) -> None:
    """Raise InputError if two columns have the same name."""
    twice = [column for column, count in Counter(filter(None, table.columns)).items() if count > 1]
    if twice:
        raise InputError(f"{table.name}: two columns are called '{twice[0]}'", "rename one in the first line")


def _find(table: Table, column: str) -> int:
    """Return the position of a column; raises InputError if the table has none of this name."""
    if column not in table.columns:
        names = [name for name in table.columns if name]
        error = missing_name_error(table.name, "column", column, names)
        if all(map(is_number, names)):
            error.fix = (*error.fix, "its first line has numbers: are the column names missing?")
        raise error
    return table.columns.index(column)


@dataclass(frozen=True)
class _Selection:
    """The positions of the ``columns`` to read as features.

    With ``is_default``, these are all columns without a role, and those with neither numbers nor few words are skipped.
    ``words`` has the categorical columns, each with its known words, or none if they are those in the file. With
    ``detects_words``, other columns of few words become categorical too. ``like`` is the data that new data must match.
    """

    columns: Sequence[int]
    words: Mapping[int, tuple[str, ...]]
    is_default: bool
    detects_words: bool
    like: Like | None


def _select(
    table: Table,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None,
    like: Like | None,
    positions: Mapping[str, int],
) -> _Selection:
    """Select the columns that are features; ``positions`` are those of the roles."""
    if like is not None and like.columns:
        for name, value in (("features", features), ("categorical", categorical)):
            if value is not None:
                raise UsageError(
                    f"--{name} contradicts --like {like.name}, whose columns are read", f"leave out --{name}"
                )
        known = _find_known_columns(table, like, positions)
        return _Selection(list(known), {at: words for at, words in known.items() if words}, False, False, like)
    selected = None if features is None else _find_named_columns(table, "features", features, positions)
    coded: list[int] = []
    if categorical is not None and categorical != ABSENT:
        coded = _find_named_columns(table, "categorical", categorical, positions)
    outside = [table.columns[at] for at in coded if selected is not None and at not in selected]
    if outside:
        raise UsageError(f"column '{outside[0]}' is in --categorical but not in --features", "name it in both")
    others = [at for at, column in enumerate(table.columns) if column and at not in positions.values()]
    return _Selection(
        columns=others if selected is None else selected,
        words=dict.fromkeys(coded, ()),
        is_default=selected is None,
        detects_words=categorical != ABSENT and like is None,
        like=like,
    )


def _find_known_columns(table: Table, like: Like, positions: Mapping[str, int]) -> dict[int, tuple[str, ...]]:
    """Return the words of the columns of ``like`` by position; raises an error for one that is missing or a role."""
    for column in like.columns:
        if column.name not in table.columns:
            near = closest(column.name, [name for name in table.columns if name])
            raise InputError(
                f"{table.name} has no column '{column.name}'",
                *([near] if near.startswith("did") else []),
                f"all columns of {like.name} are needed",
            )
    known = {_find(table, column.name): column.words for column in like.columns}
    for role, at in positions.items():
        if at in known:
            raise UsageError(f"column '{table.columns[at]}' is a feature of {like.name}, and cannot be {option(role)}")
    return known


def _find_named_columns(
    table: Table, source: str, chosen: str | Sequence[str], positions: Mapping[str, int]
) -> list[int]:
    """Return the positions of the columns that the option ``source`` names."""
    names = split_names(chosen)
    if not any(names):
        raise UsageError(f"--{source} names no column", f"--{source} COL,COL of: {list_columns(table.columns)}")
    role_of = {table.columns[at]: role for role, at in positions.items()}
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"column '{name}' is twice in --{source}")
        if name in role_of:
            raise UsageError(f"column '{name}' cannot be both {option(role_of[name])} and one of --{source}")
    return [_find(table, name) for name in names]


def split_names(chosen: str | Sequence[str]) -> list[str]:
    """Return the names of columns, which may be separated by commas, and quoted as in CSV."""
    names = next(csv.reader([chosen], skipinitialspace=True), []) if isinstance(chosen, str) else list(chosen)
    return [name.strip() for name in names]


def _read(table: Table, positions: Mapping[str, int], selection: _Selection) -> RawSamples:
    """Read the selected features, and the roles at ``positions``; without a label, labels are empty."""
    names = table.columns
    coded = [at for at in selection.columns if at in selection.words]
    others = [at for at in selection.columns if at not in selection.words]
    loaded = table.load([*positions.values(), *coded], others)
    columns: list[Column] = []
    places: list[str] = []  # the name of the column of each feature
    values: list[NDArray[np.float64]] = []
    skipped: list[str] = []
    for at in selection.columns:
        column, numbers = _read_column(table, at, loaded.pop(at), selection)
        if column is None:
            skipped.append(names[at])
            continue
        columns.append(column)
        places += [names[at]] * len(column.features)
        values.append(numbers)
    if not columns:
        raise InputError(f"{table.name} has no column of numbers besides client and label")
    x = np.concatenate(values, axis=1)
    words = read_roles(table, positions, loaded)
    remarks = [f"left out, not numbers: {list_columns(skipped)}"] if skipped else []
    remarks += [f"one feature per word: {each.name} ({list_columns(each.words)})" for each in columns if each.words]
    return RawSamples(
        x=x,
        label=words.pop("label", np.full(len(x), "", dtype=np.str_)),
        owner=words.pop("client", None),
        place=lambda row, role, at: locate_cell(
            table, row, names[positions[role]] if role in positions else places[at[0]]
        ),
        columns=tuple(columns),
        remarks=tuple(remarks),
        metadata=words,
    )


def read_roles(table: Table, positions: Mapping[str, int], loaded: Mapping[int, Any]) -> dict[str, NDArray[np.str_]]:
    """Return the text (n,) of each role, from the loaded columns."""
    return {
        role: to_text(loaded[at].to_numpy(object), f"{table.name}: column '{table.columns[at]}'")
        for role, at in positions.items()
    }


def _read_column(
    table: Table, at: int, series: Any, selection: _Selection
) -> tuple[Column | None, NDArray[np.float64]]:
    """Return a column and its features (n, d); None in place of the column if it is to be skipped.

    Raises InputError for a cell that is not a number, or a word that is not known.
    """
    name, like = table.columns[at], selection.like
    words = None
    if at in selection.words:
        words = _normalize_words(series, f"{table.name}: column '{name}'")
    elif selection.detects_words:
        words = _detect_words(series, f"{table.name}: column '{name}'")
    if words is not None:
        column = Column(name, selection.words.get(at) or _list_words(table, name, words))
        return column, _encode_words(table, words, column, like)
    numbers, is_strange = _parse_numbers(series)
    known = np.count_nonzero(~np.isnan(numbers)) + is_strange.sum()
    # A column of mostly numbers is meant to be a feature: report a typo in it instead of skipping the column.
    if selection.is_default and (not known or is_strange.sum() > known / 2):
        return None, numbers
    if is_strange.any():
        raise _not_a_number_error(table, int(np.argmax(is_strange)), at, like)
    return Column(name), numbers[:, None]


def _parse_numbers(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers (n,) of a column, NaN if missing, and a mask (n,) of cells that are not numbers."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64), np.zeros(len(column), dtype=np.bool_)
    if column.dtype.kind in "mMc":
        return np.full(len(column), np.nan), column.notna().to_numpy(np.bool_)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    # pandas keeps the spellings of missing values in a column with integers beyond 64 bits.
    is_empty = (column.isna() | column.astype(str).str.strip().isin(MISSING)).to_numpy(np.bool_)
    return numbers, np.isnan(numbers) & ~is_empty


def _not_a_number_error(table: Table, row: int, column: int, like: Like | None) -> InputError:
    cell = table.cell(row, column)
    line = " ".join(cell.split())
    excerpt = line if len(line) <= 40 else line[:37] + "..."
    problem = f"{locate_cell(table, row, table.columns[column])}: '{excerpt}' is not a number"
    hints = [hint for pattern, hint in _HINTS.items() if re.fullmatch(pattern, cell.strip())]
    if like:
        return InputError(problem, *(hints or ["correct it"]), f"{like.name} has numbers in this column")
    return InputError(
        problem,
        *(hints or ["correct it, or use --categorical with this column for one 0/1 feature per word"]),
        "or list --features without this column",
    )


def _normalize_words(column: Any, where: str) -> NDArray[np.str_]:
    """Return the words (n,) of a column, empty if missing."""
    words = to_text(column.to_numpy(object), where)
    return normalize_numbers(np.where(np.isin(words, MISSING), "", words))


def _detect_words(column: Any, where: str) -> NDArray[np.str_] | None:
    """Return the words of a column with few distinct words, each of them frequent; None for other columns."""
    if column.dtype.kind in "biufmMc":
        return None
    if not all(isinstance(cell, str) and len(cell) <= NAME_LENGTH for cell in column.dropna()):
        return None
    words = _normalize_words(column, where)
    different = {word for word in np.unique(words).tolist() if word}
    if any(is_number(word) or any(re.fullmatch(pattern, word) for pattern in _HINTS) for word in different):
        return None
    most = min(_MAX_DETECTED_WORDS, len(words) // _MIN_ROWS_PER_WORD)
    return words if 2 <= len(different) <= most else None


def _list_words(table: Table, name: str, words: NDArray[np.str_]) -> tuple[str, ...]:
    """Return the distinct words of a column (n,) in order; raises InputError if there are none or too many."""
    different = sort_words(word for word in words.tolist() if word)
    if not 1 <= len(different) <= _MAX_WORDS:
        raise InputError(
            f"{table.name}: column '{name}' has {len(different)} distinct words; "
            f"a categorical column has 1 to {_MAX_WORDS}",
            "leave it out of --categorical",
        )
    return tuple(different)


def _encode_words(table: Table, words: NDArray[np.str_], column: Column, like: Like | None) -> NDArray[np.float64]:
    """Return one 0/1 feature per word of the column, (n, words); NaN if the word is missing."""
    is_strange = (words != "") & ~np.isin(words, column.words)
    if is_strange.any():
        row = int(np.argmax(is_strange))
        raise InputError(
            f"{locate_cell(table, row, column.name)}: '{words[row]}' is not among the words of "
            f"{like.name if like else 'that column'}: {list_columns(column.words)}",
            "use one of these; a new word requires new training",
        )
    hot: NDArray[np.float64] = (words[:, None] == np.asarray(column.words)).astype(np.float64)
    hot[words == ""] = np.nan
    return hot


def locate_cell(table: Table, row: int, column: str) -> str:
    """Return the place of a cell, for messages."""
    return f"{table.place(row)}, column '{column}'"


def list_columns(columns: Sequence[str]) -> str:
    """Return the first names of columns, for messages."""
    return listed([column for column in columns if column], most=10)
