"""Columns of a table whose cells are not numbers, or may be read in two ways: errors with the options that decide."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import Dialect
from pflcli.core.errors import InputError
from pflcli.data.formats.cells import Reading, explain, is_date, is_measure, plain
from pflcli.data.formats.columns import Selection, Table, list_columns, locate_cell
from pflcli.data.formats.words import MAX_DETECTED_WORDS

_MIN_NUMBER_SHARE = 0.2
"""Share of numbers at which a column is meant to be a feature, so that its other cells are errors."""
_MISSING_MARKS = (
    "#n/a", "#na", "#null!", "#div/0!", "#value!", "#ref!", "#num!", ".", "..", "*", "--", "---", "na", "n.a.", "n.d.",
    "nd", "nil", "none", "null", "missing", "unknown", "not available", "\u2013", "\u2014", "\\n",
)  # fmt: skip
"""Words, in lower case, that often stand for a missing value."""


@dataclass(frozen=True)
class Doubt:
    """A column ``at`` with cells that are not numbers, such as that of ``row``; ``words`` are distinct such cells."""

    at: int
    row: int
    words: tuple[str, ...]
    readings: tuple[Reading, ...]
    absent: tuple[str, ...]
    """words that may mark missing values"""
    count: int
    """cells that are not numbers"""


def is_meant(
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


def list_absent(cells: Any, dialect: Dialect) -> tuple[str, ...]:
    """Return the words, at most three, that may mark missing values: known spellings, and words that occur often."""
    counts = Counter(word.strip() for word in cells.astype(str) if not is_measure(word) and not is_date(word))
    if len(counts) > 3:
        counts = Counter({word: count for word, count in counts.items() if word.lower() in _MISSING_MARKS})
    return tuple(word for word, count in counts.items() if word.lower() in _MISSING_MARKS or count > 1)[:3]


def not_numbers_error(table: Table, doubts: Sequence[Doubt], selection: Selection) -> InputError:
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
    elif len(first.words) <= MAX_DETECTED_WORDS and all("--strip" in each.option for each in first.readings):
        fixes.append(f"--categorical {names} makes one 0/1 feature per word")
    fixes.append(f"--leave-out {names}" if selection.is_default else "or list --features without this column")
    return InputError(problem, *fixes)


def judge_points(table: Table, columns: Mapping[int, NDArray[np.float64]]) -> list[str]:
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
