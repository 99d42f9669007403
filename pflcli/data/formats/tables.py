"""Read the samples of a table: how its cells become features."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import NO_DIALECT, Column, Dialect
from pflcli.core.errors import InputError
from pflcli.core.wording import counted, listed
from pflcli.data.formats import Like, RawSamples, Roles, spellings, to_text
from pflcli.data.formats.cells import find_readings, find_stripped, is_measure, parse_numbers
from pflcli.data.formats.columns import (
    Selection,
    Table,
    find_column,
    find_positions,
    list_columns,
    locate_cell,
    require_distinct,
    select,
)
from pflcli.data.formats.doubts import Doubt, is_meant, judge_points, list_absent, not_numbers_error
from pflcli.data.formats.labels import parse_condition
from pflcli.data.formats.words import encode_words, has_words, list_words, to_words


def read(
    table: Table,
    roles: Roles,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None = None,
    like: Like | None = None,
    dialect: Dialect | None = None,
    leave_out: str | Sequence[str] | None = None,
) -> RawSamples:
    """Read the samples of a table.

    The default ``features`` are all columns of numbers or few words except those of ``roles`` and ``leave_out``; with
    ``like``, its columns. ``dialect`` is how cells are written. A column of words becomes one feature per word, and so
    does a column of numbers in ``categorical``, whose value "none" leaves columns of words out. Raises UsageError for
    columns that contradict one another, InputError for a missing column, a cell that is not a number or a word that
    ``like`` does not have.
    """
    if like is not None:
        table.columns[:] = [like.spellings.get(name, name) for name in table.columns]
    label, condition = parse_condition(roles.label, table.columns)
    positions = find_positions(table, replace(roles, label=label))
    selection = select(table, features, categorical, like, positions, leave_out)
    raw = _read(table, positions, replace(selection, dialect=dialect or NO_DIALECT))
    return replace(raw, condition=condition)


def read_features(
    table: Table,
    like: Like | None = None,
    dialect: Dialect | None = None,
    roles: Mapping[str, str] | None = None,
    *,
    new_words_are_missing: bool = False,
) -> RawSamples:
    """Read only the features of samples: the columns of ``like``, or all columns of numbers without ``roles``.

    ``roles`` are the columns of further metadata, such as the client. Raises InputError for a missing column, a cell
    that is not a number, or a word that ``like`` does not have, unless ``new_words_are_missing``.
    """
    require_distinct(table)
    positions = {role: find_column(table, column) for role, column in (roles or {}).items()}
    selection = select(table, None, None, like or Like("the model", (), ()), positions)
    return _read(
        table, positions, replace(selection, dialect=dialect or NO_DIALECT, new_words_are_missing=new_words_are_missing)
    )


def _read(table: Table, positions: Mapping[str, int], selection: Selection) -> RawSamples:
    """Read the selected features, and the roles at ``positions``; without a label, labels are empty."""
    names, dialect = table.columns, selection.dialect
    coded = [at for at in selection.columns if at in selection.words]
    others = [at for at in selection.columns if at not in selection.words]
    loaded = table.load([*positions.values(), *coded], others)
    columns: list[Column] = []
    of_feature: list[int] = []  # the position of the column of each feature
    values: list[NDArray[np.float64]] = []
    left_out: dict[str, Any] = {name: None for at, name in enumerate(names) if at in selection.excluded}
    marks: dict[str, tuple[str, ...]] = {}
    skipped: list[str] = []
    doubts: list[Doubt] = []
    remarks: list[str] = []
    for at in selection.columns:
        series = loaded.pop(at)
        column, numbers = _read_column(table, at, series, selection, remarks)
        if isinstance(column, Doubt):
            doubts.append(column)
        elif column is None:
            skipped.append(names[at])
            left_out[names[at]] = series
        else:
            columns.append(column)
            of_feature += [at] * len(column.features)
            values.append(numbers)
            if dialect.strip and not column.words:
                marks[column.name] = find_stripped(series, dialect.strip)
    if doubts:
        raise not_numbers_error(table, doubts, selection)
    if not columns:
        raise InputError(
            f"{table.name} has no column of numbers besides client and label",
            *([f"left out, not numbers: {list_columns(skipped)}"] if skipped else []),
            *([f"--categorical {shlex.quote(','.join(skipped[:3]))} makes features of words"] if skipped else []),
        )
    x = np.concatenate(values, axis=1)
    if selection.like is None and dialect.decimal is None and dialect.thousands is None:
        remarks += judge_points(table, dict(zip(of_feature, x.T, strict=True)))
    words = read_roles(table, positions, loaded)
    remarks += [f"left out, not numbers: {list_columns(skipped)}"] if skipped else []
    return RawSamples(
        x=x,
        label=words.pop("label", np.full(len(x), "", dtype=np.str_)),
        owner=words.pop("client", None),
        place=lambda row, role, at: (
            locate_cell(table, row, names[positions[role] if role in positions else of_feature[at[0]]])
            if role in positions or at
            else table.place(row)  # the client of a file
        ),
        columns=tuple(columns),
        remarks=tuple(remarks),
        metadata=words,
        dialect=dialect,
        cell=lambda row, role, at: table.cell(row, positions[role] if role in positions else of_feature[at[0]]),
        names={role: names[at] for role, at in positions.items()},
        left_out=left_out,
        marks=marks,
    )


def read_roles(table: Table, positions: Mapping[str, int], loaded: Mapping[int, Any]) -> dict[str, NDArray[np.str_]]:
    """Return the text (n,) of each role, from the loaded columns."""
    return {
        role: to_text(loaded[at].to_numpy(object), f"{table.name}: column '{table.columns[at]}'")
        for role, at in positions.items()
    }


def _read_column(
    table: Table, at: int, series: Any, selection: Selection, remarks: list[str]
) -> tuple[Column | Doubt | None, NDArray[np.float64]]:
    """Return a column and its features (n, d), or why it has none: a doubt, or None if it is to be skipped.

    Raises InputError for a word that is not known. Adds to ``remarks`` which words are taken as missing.
    """
    name, like, dialect = table.columns[at], selection.like, selection.dialect
    where = f"{table.name}: column '{name}'"
    old = next((column for column in (like.columns if like else ()) if column.name == name), Column(name))
    nested = [isinstance(cell, list | tuple | dict | np.ndarray) for cell in series] if series.dtype == object else []
    if any(nested):
        return _stack_lists(table, at, series, np.asarray(nested), old.size)
    if old.size:
        raise InputError(f"{where} has no lists of {old.size} numbers, as in training")
    if at in selection.words or (selection.detects_words and has_words(series, where, dialect)):
        known = selection.words.get(at, ())
        words = spellings.read(
            to_words(series, where, dialect),
            "word",
            lambda row: locate_cell(table, row, name),
            dialect,
            known,
            asks=like is None,
        )
        column = Column(name, known or list_words(table, name, words))
        if not selection.new_words_are_missing:
            return column, encode_words(table, words, column, like)
        is_new = (words != "") & ~np.isin(words, column.words)
        hot = encode_words(table, np.where(is_new, "", words), column, like)
        if is_new.any():
            new = listed([f"'{word}'" for word in np.unique(words[is_new]).tolist()], most=4)
            remarks.append(f"{counted(int(is_new.sum()), 'cell')} of '{name}' with words that training lacks: {new}")
        # If training marked no missing value of this column, a new word has none of its features, as in scikit-learn.
        if not any(known.gaps for known in (like.columns if like else ()) if known.name == name):
            hot[is_new] = 0
        return column, hot
    numbers, is_strange = parse_numbers(series, dialect)
    if not is_strange.any() and not (selection.is_default and np.isnan(numbers).all()):
        return Column(name), numbers[:, None]
    strange = list(dict.fromkeys(series[is_strange].astype(str).str.strip().tolist())) if is_strange.any() else []
    readings = find_readings(strange, dialect) if any(map(is_measure, strange)) else []
    if selection.is_default and not is_meant(numbers, series, is_strange, strange, dialect):
        return None, numbers
    row = int(np.argmax(is_strange))
    absent = list_absent(series[is_strange], dialect)
    return Doubt(at, row, tuple(strange), tuple(readings), absent, int(is_strange.sum())), numbers


def _stack_lists(
    table: Table, at: int, series: Any, nested: NDArray[np.bool_], size: int
) -> tuple[Column, NDArray[np.float64]]:
    """Return a column of lists of numbers, and these (n, size); NaN if a list is missing. A ``size`` of 0 is any.

    Raises InputError for objects, for other lists, and for lists of another length than those before or in training.
    """
    name = table.columns[at]
    values: NDArray[np.float64] | None = None
    for row in np.flatnonzero(nested).tolist():
        cell = series.iloc[row]
        try:
            numbers = None if isinstance(cell, dict) else np.asarray(cell, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = None
        if numbers is None or numbers.ndim != 1 or not len(numbers):
            inside = (
                f"an object ({list_columns(list(map(str, cell)))})" if isinstance(cell, dict) else "no list of numbers"
            )
            raise InputError(
                f"{locate_cell(table, row, name)}: it contains {inside}",
                "make each value a column of its own, as pandas.json_normalize does",
                f"--leave-out {shlex.quote(name)}",
            )
        size = size or len(numbers)
        if len(numbers) != size:
            raise InputError(f"{locate_cell(table, row, name)}: it has {len(numbers)} numbers, and others have {size}")
        values = np.full((len(series), size), np.nan) if values is None else values
        values[row] = numbers
    assert values is not None
    strange = np.flatnonzero(~nested & series.notna().to_numpy(np.bool_))
    if len(strange):
        raise InputError(f"{locate_cell(table, int(strange[0]), name)}: it is no list of {size} numbers, as others are")
    return Column(name, size=size), values
