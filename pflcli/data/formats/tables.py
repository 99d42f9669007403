"""Selects the feature columns of a table and converts them to numbers, for CSV and Parquet."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import ABSENT, Column, Like, Raw, Roles, option, text, unknown
from pflcli.data.formats.table import HINTS, MISSING, Table, listed_columns, place_of
from pflcli.data.formats.words import few_words, known_words, one_hot, words_of
from pflcli.errors import InputError, UsageError, closest


def read(
    table: Table,
    roles: Roles,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None = None,
    like: Like | None = None,
) -> Raw:
    """Read the samples of a table.

    The default ``features`` are all columns of numbers or few words except those of ``roles``; with ``like``, its
    columns. A column of words becomes one feature per word, and so does a column of numbers in ``categorical``, whose
    value "none" leaves columns of words out. Raises UsageError for columns that contradict one another, InputError for
    a missing column, a cell that is not a number or a word that ``like`` does not have.
    """
    columns, positions = table.columns, find_positions(table, roles)
    keys = list(positions.values())
    selected, coded = _choice(table, features, categorical, like, positions)
    candidates = (
        [at for at, column in enumerate(columns) if column and at not in keys] if selected is None else selected
    )
    others = [at for at in candidates if at not in coded]
    loaded = table.load([*keys, *(at for at in candidates if at in coded)], others)
    chosen, places, values, skipped = _features(table, candidates, loaded, coded, selected is None, categorical, like)
    remarks = [f"left out, not numbers: {listed_columns(skipped)}"] if skipped else []
    remarks += [
        f"one feature per word: {column.name} ({listed_columns(column.words)})" for column in chosen if column.words
    ]
    words = {
        role: text(loaded[at].to_numpy(object), f"{table.name}: column '{columns[at]}'")
        for role, at in positions.items()
    }
    return Raw(
        x=np.concatenate(values, axis=1),
        label=words["label"],
        owner=words.get("client"),
        place=lambda row, role, at: place_of(
            table, row, columns[positions[role]] if role in positions else places[at[0]]
        ),
        columns=tuple(chosen),
        remarks=tuple(remarks),
        beside={role: words[role] for role in roles.beside},
    )


def read_features(table: Table, like: Like | None = None) -> Raw:
    """Read only the features of samples: the columns of ``like``, or all columns of numbers.

    Raises InputError for a missing column, a cell that is not a number or a word that ``like`` does not have.
    """
    _require_distinct(table)
    selected, coded = _choice(table, None, None, like, {})
    candidates = [at for at, column in enumerate(table.columns) if column] if selected is None else selected
    loaded = table.load([at for at in candidates if at in coded], [at for at in candidates if at not in coded])
    expected = like or Like("the model", (), ())
    chosen, places, values, _ = _features(table, candidates, loaded, coded, selected is None, ABSENT, expected)
    return Raw(
        x=np.concatenate(values, axis=1),
        label=np.full(len(values[0]), "", dtype=np.str_),
        owner=None,
        place=lambda row, role, at: place_of(table, row, places[at[0]]),
        columns=tuple(chosen),
    )


def _require_distinct(table: Table) -> None:
    """Raise InputError if two columns have the same name."""
    twice = [column for column, count in Counter(filter(None, table.columns)).items() if count > 1]
    if twice:
        raise InputError(f"{table.name}: two columns are called '{twice[0]}'", "rename one in the first line")


def find_positions(table: Table, roles: Roles) -> dict[str, int]:
    """Return the position of the column for each role.

    Raises UsageError for an option that is missing or contradicts another, InputError for a missing column.
    """
    columns = table.columns
    _require_distinct(table)
    if roles.client is None:
        raise UsageError(
            "--client is missing: name the column with each sample's client",
            f"--client COL, one of: {listed_columns(columns)}",
            f"--client {ABSENT} if samples are not assigned to clients yet",
        )
    if roles.label is None:
        raise UsageError(
            "--label is missing: name the column with the class to learn",
            f"--label COL, one of: {listed_columns(columns)}",
        )
    owner = {} if roles.client == ABSENT and ABSENT not in columns else {"client": _find(table, roles.client)}
    positions = {"label": _find(table, roles.label), **owner}
    positions |= {role: _find(table, name) for role, name in roles.beside.items()}
    for role, at in positions.items():
        twice = [other for other in positions if other != role and positions[other] == at]
        if twice:
            raise UsageError(f"column '{columns[at]}' cannot be both {option(twice[0])} and {option(role)}")
    return positions


def _features(
    table: Table,
    candidates: Sequence[int],
    loaded: dict[int, Any],
    coded: Mapping[int, Sequence[str]],
    every: bool,
    categorical: str | Sequence[str] | None,
    like: Like | None,
) -> tuple[list[Column], list[str], list[NDArray[np.float64]], list[str]]:
    """Return the columns of features, the column name of each feature, their values (n, d), and the skipped columns.

    The columns ``candidates`` are removed from ``loaded``. With ``every``, they are all columns of the table, and those
    with neither numbers nor few words are skipped. Raises InputError for a cell that is not a number.
    """
    columns = table.columns
    chosen, places, values, skipped = [], [], [], []
    for at in candidates:
        series = loaded.pop(at)
        place = f"{table.name}: column '{columns[at]}'"
        few = categorical != ABSENT and not like
        words = words_of(series, place) if at in coded else few_words(series, place) if few else None
        if words is not None:
            column = Column(columns[at], tuple(coded.get(at, ())) or known_words(table, columns[at], words))
            values.append(one_hot(table, at, words, column, like))
        else:
            numbers, strange = _numbers(series)
            known = np.count_nonzero(~np.isnan(numbers)) + strange.sum()
            # A column of mostly numbers is meant to be a feature: report a typo in it instead of skipping the column.
            if every and (not known or strange.sum() > known / 2):
                skipped.append(columns[at])
                continue
            if strange.any():
                raise _not_a_number(table, int(np.argmax(strange)), at, like)
            column = Column(columns[at])
            values.append(numbers[:, None])
        chosen.append(column)
        places += [columns[at]] * len(column.features)
    if not chosen:
        raise InputError(f"{table.name} has no column of numbers besides client and label")
    return chosen, places, values, skipped


def _choice(
    table: Table,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None,
    like: Like | None,
    positions: Mapping[str, int],
) -> tuple[list[int] | None, dict[int, tuple[str, ...]]]:
    """Return the selected columns, None for all, and the columns of words, each with its known words."""
    if like is not None and like.columns:
        for name, value in (("features", features), ("categorical", categorical)):
            if value is not None:
                raise UsageError(
                    f"--{name} contradicts --like {like.name}, whose columns are read", f"leave out --{name}"
                )
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
                raise UsageError(
                    f"column '{table.columns[at]}' is a feature of {like.name}, and cannot be {option(role)}"
                )
        return list(known), {at: words for at, words in known.items() if words}
    selected = None if features is None else _chosen_columns(table, "features", features, positions)
    if categorical is None or categorical == ABSENT:
        return selected, {}
    coded = _chosen_columns(table, "categorical", categorical, positions)
    outside = [table.columns[at] for at in coded if selected is not None and at not in selected]
    if outside:
        raise UsageError(f"column '{outside[0]}' is in --categorical but not in --features", "name it in both")
    return selected, {at: () for at in coded}


def _find(table: Table, column: str) -> int:
    if column not in table.columns:
        error = unknown(table.name, "column", column, [name for name in table.columns if name])
        if all(_is_number(name) for name in table.columns if name):
            error.fix = (*error.fix, "its first line has numbers: are the column names missing?")
        raise error
    return table.columns.index(column)


def split_names(chosen: str | Sequence[str]) -> list[str]:
    """Return the names of columns, which may be separated by commas, and quoted as in CSV."""
    names = next(csv.reader([chosen], skipinitialspace=True), []) if isinstance(chosen, str) else list(chosen)
    return [name.strip() for name in names]


def _chosen_columns(table: Table, source: str, chosen: str | Sequence[str], positions: Mapping[str, int]) -> list[int]:
    names = split_names(chosen)
    if not any(names):
        raise UsageError(f"--{source} names no column", f"--{source} COL,COL of: {listed_columns(table.columns)}")
    role_of = {table.columns[at]: role for role, at in positions.items()}
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"column '{name}' is twice in --{source}")
        role = role_of.get(name)
        if role is not None:
            raise UsageError(f"column '{name}' cannot be both {option(role)} and one of --{source}")
    return [_find(table, name) for name in names]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _numbers(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers (n,) of a column, NaN if missing, and a mask (n,) of cells that are not numbers."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return column.to_numpy(np.float64), np.zeros(len(column), dtype=np.bool_)
    if column.dtype.kind in "mMc":
        return np.full(len(column), np.nan), column.notna().to_numpy(np.bool_)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    # pandas keeps the spellings of missing values in a column with integers beyond 64 bits.
    empty = (column.isna() | column.astype(str).str.strip().isin(MISSING)).to_numpy(np.bool_)
    return numbers, np.isnan(numbers) & ~empty


def _not_a_number(table: Table, row: int, column: int, like: Like | None) -> InputError:
    cell = table.cell(row, column)
    hints = [hint for pattern, hint in HINTS.items() if re.fullmatch(pattern, cell.strip())]
    line = " ".join(cell.split())
    excerpt = line if len(line) <= 40 else line[:37] + "..."
    problem = f"{place_of(table, row, table.columns[column])}: '{excerpt}' is not a number"
    if like:
        return InputError(problem, *(hints or ["correct it"]), f"{like.name} has numbers in this column")
    return InputError(
        problem,
        *(hints or ["correct it, or use --categorical with this column for one 0/1 feature per word"]),
        "or list --features without this column",
    )
