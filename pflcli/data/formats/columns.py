"""The columns of a table: which have roles, such as client and label, and which are features. ``Table`` is the file."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pflcli.artifacts.codebook import NO_DIALECT, Dialect
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.wording import listed
from pflcli.data.formats import ABSENT, Like, Roles, missing_name_error, option


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

    def explain_missing(self, column: str) -> list[str]:
        """Return the options that may find a missing column."""


def locate_cell(table: Table, row: int, column: str) -> str:
    """Return the place of a cell, for messages."""
    return f"{table.place(row)}, column '{column}'"


def list_columns(columns: Sequence[str]) -> str:
    """Return the first names of columns, for messages."""
    return listed([column for column in columns if column], most=10)


def find_positions(table: Table, roles: Roles) -> dict[str, int]:
    """Return the position of the column for each role.

    Raises UsageError for an option that is missing or contradicts another, InputError for a missing column.
    """
    columns = table.columns
    require_distinct(table)
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
    client = {"client": find_column(table, roles.client)} if has_clients else {}
    positions = {"label": find_column(table, roles.label), **client}
    positions |= {role: find_column(table, name) for role, name in roles.wanted(columns).items()}
    for role, at in positions.items():
        twice = [other for other in positions if other != role and positions[other] == at]
        if twice:
            raise UsageError(f"column '{columns[at]}' cannot be both {option(twice[0])} and {option(role)}")
    return positions


def require_distinct(table: Table) -> None:
    """Raise InputError if two columns have the same name."""
    twice = [column for column, count in Counter(filter(None, table.columns)).items() if count > 1]
    if twice:
        raise InputError(f"{table.name}: two columns are called '{twice[0]}'", "rename one in the first line")


def find_column(table: Table, column: str) -> int:
    """Return the position of a column; raises InputError if the table has none of this name."""
    if column not in table.columns:
        error = missing_name_error(table.name, "column", column, [name for name in table.columns if name])
        error.fix = (*error.fix, *table.explain_missing(column))
        raise error
    return table.columns.index(column)


@dataclass(frozen=True)
class Selection:
    """The positions of the ``columns`` to read as features.

    With ``is_default``, these are all columns without a role, and those with neither numbers nor few words are skipped.
    ``words`` has the categorical columns, each with its known words, or none if they are those in the file. With
    ``detects_words``, other columns of few words become categorical too. ``like`` is the data that new data must match.
    The user left out the columns ``excluded``. Cells are written in ``dialect``. A word that ``like`` lacks is an
    error, unless ``new_words_are_missing``.
    """

    columns: Sequence[int]
    words: Mapping[int, tuple[str, ...]]
    is_default: bool
    detects_words: bool
    like: Like | None
    excluded: Sequence[int] = ()
    dialect: Dialect = NO_DIALECT
    new_words_are_missing: bool = False


def select(
    table: Table,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None,
    like: Like | None,
    positions: Mapping[str, int],
    leave_out: str | Sequence[str] | None = None,
) -> Selection:
    """Select the columns that are features; ``positions`` are those of the roles."""
    if like is not None and like.columns:
        for name, value in (("features", features), ("categorical", categorical), ("leave-out", leave_out)):
            if value is not None:
                raise UsageError(
                    f"--{name} contradicts --like {like.name}, whose columns are read", f"leave out --{name}"
                )
        known = _find_known_columns(table, like, positions)
        of_words = {at: words for at, words in known.items() if words or table.columns[at] in like.coded}
        return Selection(list(known), of_words, False, False, like)
    selected = None if features is None else _find_named_columns(table, "features", features, positions)
    coded: list[int] = []
    if categorical is not None and categorical != ABSENT:
        coded = _find_named_columns(table, "categorical", categorical, positions)
    outside = [table.columns[at] for at in coded if selected is not None and at not in selected]
    if outside:
        raise UsageError(f"column '{outside[0]}' is in --categorical but not in --features", "name it in both")
    excluded: list[int] = []
    if leave_out is not None and selected is not None:
        raise UsageError("--leave-out contradicts --features, which lists all features", "leave out --leave-out")
    if leave_out is not None:
        excluded = _find_named_columns(table, "leave-out", leave_out, positions)
        both = [table.columns[at] for at in coded if at in excluded]
        if both:
            raise UsageError(f"column '{both[0]}' is in --categorical and in --leave-out", "name it in one of them")
    others = [at for at, column in enumerate(table.columns) if column and at not in (*positions.values(), *excluded)]
    return Selection(
        columns=others if selected is None else selected,
        words=dict.fromkeys(coded, ()),
        is_default=selected is None,
        detects_words=categorical != ABSENT and like is None,
        like=like,
        excluded=excluded,
    )


def _find_known_columns(table: Table, like: Like, positions: Mapping[str, int]) -> dict[int, tuple[str, ...]]:
    """Return the words of the columns of ``like`` by position; raises an error for one that is missing or a role."""
    for column in like.columns:
        if column.name not in table.columns:
            used = {*(other.name for other in like.columns), *(table.columns[at] for at in positions.values())}
            near = closest(column.name, [name for name in table.columns if name and name not in used])
            raise InputError(
                f"{table.name} has no column '{column.name}'",
                *([near] if near.startswith("did") else []),
                *table.explain_missing(column.name),
                f"all columns of {like.name} are needed",
            )
    known = {find_column(table, column.name): column.words for column in like.columns}
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
    return [find_column(table, name) for name in names]


def split_names(chosen: str | Sequence[str]) -> list[str]:
    """Return the names of columns, which may be separated by commas, and quoted as in CSV."""
    names = next(csv.reader([chosen], skipinitialspace=True), []) if isinstance(chosen, str) else list(chosen)
    return [name.strip() for name in names]
