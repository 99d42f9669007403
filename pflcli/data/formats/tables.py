"""Tables: which columns are features, and how cells become numbers. ``Table`` is the interface of a file."""

from __future__ import annotations

import csv
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import NO_DIALECT, Column, Dialect
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.foreign import NAME_LENGTH
from pflcli.core.wording import counted, listed
from pflcli.data.formats import (
    ABSENT,
    Like,
    RawSamples,
    Roles,
    missing_name_error,
    option,
    sort_words,
    spellings,
    to_text,
)
from pflcli.data.formats.cells import (
    Reading,
    explain,
    find_readings,
    find_stripped,
    is_date,
    is_ledger_negative,
    is_measure,
    list_missing,
    parse_numbers,
    plain,
)
from pflcli.data.formats.labels import parse_condition

_MAX_WORDS = 200
"""Maximum number of distinct words in a categorical column."""
_MAX_DETECTED_WORDS = 20
"""Maximum number of distinct words in a column that becomes categorical by itself."""
_MIN_ROWS_PER_WORD = 5
"""Minimum number of rows per distinct word in a column that becomes categorical by itself."""
_MIN_NUMBER_SHARE = 0.2
"""Share of numbers at which a column is meant to be a feature, so that its other cells are errors."""
_MISSING_MARKS = (
    "#n/a", "#na", "#null!", "#div/0!", "#value!", "#ref!", "#num!", ".", "..", "*", "--", "---", "na", "n.a.", "n.d.",
    "nd", "nil", "none", "null", "missing", "unknown", "not available", "\u2013", "\u2014", "\\n",
)  # fmt: skip
"""Words, in lower case, that often stand for a missing value."""


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
    label, condition = parse_condition(roles.label, table.columns)
    positions = find_positions(table, replace(roles, label=label))
    selection = _select(table, features, categorical, like, positions, leave_out)
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
    _require_distinct(table)
    positions = {role: _find(table, column) for role, column in (roles or {}).items()}
    selection = _select(table, None, None, like or Like("the model", (), ()), positions)
    return _read(
        table,
        positions,
        replace(selection, dialect=dialect or NO_DIALECT, new_words_are_missing=new_words_are_missing),
    )


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
        error = missing_name_error(table.name, "column", column, [name for name in table.columns if name])
        error.fix = (*error.fix, *table.explain_missing(column))
        raise error
    return table.columns.index(column)


@dataclass(frozen=True)
class _Selection:
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


def _select(
    table: Table,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None,
    like: Like | None,
    positions: Mapping[str, int],
    leave_out: str | Sequence[str] | None = None,
) -> _Selection:
    """Select the columns that are features; ``positions`` are those of the roles."""
    if like is not None and like.columns:
        for name, value in (("features", features), ("categorical", categorical), ("leave-out", leave_out)):
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
    excluded: list[int] = []
    if leave_out is not None and selected is not None:
        raise UsageError("--leave-out contradicts --features, which lists all features", "leave out --leave-out")
    if leave_out is not None:
        excluded = _find_named_columns(table, "leave-out", leave_out, positions)
        both = [table.columns[at] for at in coded if at in excluded]
        if both:
            raise UsageError(f"column '{both[0]}' is in --categorical and in --leave-out", "name it in one of them")
    others = [at for at, column in enumerate(table.columns) if column and at not in (*positions.values(), *excluded)]
    return _Selection(
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
    doubts: list[_Doubt] = []
    remarks: list[str] = []
    for at in selection.columns:
        series = loaded.pop(at)
        column, numbers = _read_column(table, at, series, selection, remarks)
        if isinstance(column, _Doubt):
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
        raise _not_numbers_error(table, doubts, selection)
    if not columns:
        raise InputError(
            f"{table.name} has no column of numbers besides client and label",
            *([f"left out, not numbers: {list_columns(skipped)}"] if skipped else []),
            *([f"--categorical {shlex.quote(','.join(skipped[:3]))} makes features of words"] if skipped else []),
        )
    x = np.concatenate(values, axis=1)
    if selection.like is None and dialect.decimal is None and dialect.thousands is None:
        remarks += _judge_points(table, dict(zip(of_feature, x.T, strict=True)))
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


@dataclass(frozen=True)
class _Doubt:
    """A column ``at`` with cells that are not numbers, such as that of ``row``; ``words`` are distinct such cells."""

    at: int
    row: int
    words: tuple[str, ...]
    readings: tuple[Reading, ...]
    absent: tuple[str, ...]
    """words that may mark missing values"""
    count: int
    """cells that are not numbers"""


def _read_column(
    table: Table, at: int, series: Any, selection: _Selection, remarks: list[str]
) -> tuple[Column | _Doubt | None, NDArray[np.float64]]:
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
    if at in selection.words or (selection.detects_words and _has_words(series, where, dialect)):
        known = selection.words.get(at, ())
        words = spellings.read(
            _to_words(series, where, dialect),
            "word",
            lambda row: locate_cell(table, row, name),
            dialect,
            known,
            asks=like is None,
        )
        column = Column(name, known or _list_words(table, name, words))
        if not selection.new_words_are_missing:
            return column, _encode_words(table, words, column, like)
        is_new = (words != "") & ~np.isin(words, column.words)
        hot = _encode_words(table, np.where(is_new, "", words), column, like)
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
    if selection.is_default and not _is_meant(numbers, series, is_strange, strange, dialect):
        return None, numbers
    row = int(np.argmax(is_strange))
    absent = _list_absent(series[is_strange], dialect)
    return _Doubt(at, row, tuple(strange), tuple(readings), absent, int(is_strange.sum())), numbers


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


def _is_meant(
    numbers: NDArray[np.float64], series: Any, is_strange: NDArray[np.bool_], strange: Sequence[str], dialect: Dialect
) -> bool:
    """Return whether a column is meant to be a feature: many cells are numbers, or numbers with marks around them."""
    found = int(np.count_nonzero(~np.isnan(numbers)))
    known = found + int(is_strange.sum())
    if not known:
        return False
    if found >= _MIN_NUMBER_SHARE * known:
        return True
    measures = {word for word in strange if is_measure(word) or plain(word, dialect)}
    return 2 * (found + int(series[is_strange].astype(str).str.strip().isin(measures).sum())) >= known


def _list_absent(cells: Any, dialect: Dialect) -> tuple[str, ...]:
    """Return the words, at most three, that may mark missing values: known spellings, and words that occur often."""
    counts = Counter(word.strip() for word in cells.astype(str) if not is_measure(word) and not is_date(word))
    if len(counts) > 3:
        counts = Counter({word: count for word, count in counts.items() if word.lower() in _MISSING_MARKS})
    return tuple(word for word, count in counts.items() if word.lower() in _MISSING_MARKS or count > 1)[:3]


def _not_numbers_error(table: Table, doubts: Sequence[_Doubt], selection: _Selection) -> InputError:
    """Return the error for columns with cells that are not numbers: the options that read them, or leave them out."""
    first, like = doubts[0], selection.like
    cell = table.cell(first.row, first.at)
    line = " ".join(cell.split())
    excerpt = line if len(line) <= 40 else line[:37] + "..."
    problem = f"{locate_cell(table, first.row, table.columns[first.at])}: '{excerpt}' is not a number"
    if len(doubts) > 1:
        problem += f", and so in {list_columns([table.columns[doubt.at] for doubt in doubts[1:]])}"
    by_option: dict[str, list[tuple[str, Reading]]] = {}
    for doubt in doubts:
        for reading in doubt.readings:
            by_option.setdefault(reading.option, []).append((table.columns[doubt.at], reading))
    fixes = []
    if (
        all((doubt.row, doubt.count) == (0, 1) for doubt in doubts)
        and not selection.dialect.names
        and len(table.columns) < 20
    ):
        named = shlex.quote(",".join(table.columns))
        fixes.append(f"if it is a row of units: --skip-rows {(selection.dialect.skip_rows or 0) + 2} --names {named}")
    for option_typed, found in by_option.items():
        others = f" ({list_columns([name for name, _ in found])})" if len(doubts) > 1 else ""
        fixes.append(f"{option_typed} reads '{found[0][1].cell}' as {found[0][1].number}{others}")
    absent = list(dict.fromkeys(word for doubt in doubts for word in doubt.absent))
    if absent:
        words = ",".join(dict.fromkeys((*(selection.dialect.na or ()), *absent)))
        fixes.append(f"--na {shlex.quote(words)} if {'it marks' if len(absent) == 1 else 'they mark'} missing values")
    if not first.readings and explain(cell):
        fixes.append(explain(cell))
    if like:
        return InputError(problem, *(fixes or ["correct it"]), f"{like.name} has numbers in this column")
    names = shlex.quote(",".join(table.columns[doubt.at] for doubt in doubts))
    if not fixes:
        fixes.append("correct it, or use --categorical with this column for one 0/1 feature per word")
    elif len(first.words) <= _MAX_DETECTED_WORDS and all("--strip" in each.option for each in first.readings):
        fixes.append(f"--categorical {names} makes one 0/1 feature per word")
    fixes.append(f"--leave-out {names}" if selection.is_default else "or list --features without this column")
    return InputError(problem, *fixes)


def _judge_points(table: Table, columns: Mapping[int, NDArray[np.float64]]) -> list[str]:
    """Return a remark if three digits follow each point of a column, as in 28.707, and points are decimal elsewhere.

    A point with other digits in any column, as in 0.707 or 28.71, settles that points are decimal: a file has one
    decimal mark. Otherwise raises InputError, as the point may mark thousands. So it does for a column with 12 and
    2.670: no program writes 12.000 and 2.670 so. Only text tells 2.670 from 2.67; it is read again if the numbers of
    ``columns``, by position, leave a doubt.
    """
    is_doubtful: dict[int, bool] = {}
    for at, numbers in columns.items():
        parts = np.abs(numbers[np.isfinite(numbers) & (numbers != np.round(numbers))])
        if len(parts):
            has_range = (parts > 1).all() and (parts < 1000).all()
            is_doubtful[at] = bool(has_range and np.allclose(parts * 1000, np.round(parts * 1000), rtol=0, atol=1e-6))
    doubtful: dict[int, tuple[str, bool]] = {}
    evidence = ""
    for at in sorted(is_doubtful, key=lambda at: not is_doubtful[at]) if any(is_doubtful.values()) else ():
        if evidence and not is_doubtful[at]:
            continue
        cells = [cell.strip() for cell in table.load([at], [])[at].dropna().unique() if isinstance(cell, str)]
        pointed = [cell for cell in cells if "." in cell]
        other = next((cell for cell in pointed if not _POINT_OF_THOUSANDS.fullmatch(cell)), "")
        if other:
            evidence = evidence or f"'{other}' in '{table.columns[at]}'"
        elif pointed:
            is_mixed = len(pointed) < len(cells) and any(cell.endswith("0") for cell in pointed)
            doubtful[at] = pointed[0], is_mixed
    for at, (cell, is_mixed) in doubtful.items():
        if is_mixed or not evidence:
            raise InputError(
                f"{table.name}: column '{table.columns[at]}' has three digits after each point, as in '{cell}'",
                f"--thousands . --decimal , reads '{cell}' as {cell.replace('.', '')}",
                f"--decimal . reads '{cell}' as {cell}",
            )
    if not doubtful:
        return []
    names, cell = list_columns([table.columns[at] for at in doubtful]), next(iter(doubtful.values()))[0]
    return [f"points are decimal marks, as in {evidence}, also in: {names} (as in '{cell}')"]


_POINT_OF_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")


def _to_words(column: Any, where: str, dialect: Dialect) -> NDArray[np.str_]:
    """Return the words (n,) of a column, empty if missing."""
    words = to_text(column.to_numpy(object), where)
    return np.where(np.isin(words, list_missing(dialect)), "", words)


def _has_words(column: Any, where: str, dialect: Dialect) -> bool:
    """Return whether a column has few distinct words, each of them frequent."""
    if column.dtype.kind in "biufmMc":
        return False
    if not all(isinstance(cell, str) and len(cell) <= NAME_LENGTH for cell in column.dropna()):
        return False
    words = _to_words(column, where, dialect)
    different = [word for word in np.unique(words).tolist() if word]
    most = min(_MAX_DETECTED_WORDS, len(words) // _MIN_ROWS_PER_WORD)
    if len(different) > _MAX_WORDS or not 2 <= len({spellings.find_key(word, dialect) for word in different}) <= most:
        return False
    if any(plain(word, dialect) or is_date(word) for word in different):
        return False
    if {word.lower() for word in different} <= {"true", "false"} or any(map(is_ledger_negative, different)):
        return False
    readings = find_readings(different, dialect) if any(map(is_measure, different)) else []
    return not readings or 2 * readings[0].read <= len(different)


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
            *spellings.suggest(str(words[row]), column.words, NO_DIALECT),
            *(["pfl predict --unknown-words missing treats it as a missing value"] if like else []),
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
