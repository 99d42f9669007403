"""The profile of imported samples: what each column contains, what became of it, and what looks wrong in it.

All flags are decided here. A flag is a remark and never an error: only the user knows what a cell means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds.dataset import ColumnProfile
from pflcli.core.wording import listed
from pflcli.data.formats import KEEP, RawSamples, is_number, option
from pflcli.data.formats.cells import is_date, quote

Floats = NDArray[np.float64]

_MAX_ROWS = 100
"""Features without names that have a row each; more of them, as of an encoder, share one row."""
_FIRST = 3
"""Values that are shown."""
_MAX_MARKS = 3
"""Marks of missing values at each end of a column."""
_FAR = 10
"""A repeated value is a likely mark if it is farther from the others than this many times their range."""
_MARK = re.compile(r"-?(9+|8+|7+)(\.[0789]+)?|-?3276[78]|\d(\.\d+)?e\+?3\d")
"""Numbers that people and instruments write for a missing value, such as -999, 88, 99.9, -32768 and 9.97e+36."""
_TIMES = {"seconds": 6e8, "milliseconds": 6e11, "microseconds": 6e14, "nanoseconds": 6e17}
"""Units of time stamps, with their number from 1970 to 1989; five times that is in 2065."""
_EXCEL_DAYS = (36526, 51502)
"""The numbers of the days from 2000 to 2040 in Excel."""
_ID_NAME = re.compile(r"(.*[\W_])?(?i:id|uid|mrn|nr|no|key|index)|.*[a-z]I[Dd]")
_MIN_SAMPLES, _MAX_JUDGED = 20, 20_000
"""Fewest samples by which a column is said to predict the label, and most that are looked at."""
_MAX_ERRORS = 0.1
"""A column predicts the label alone if it makes at most this share of the errors of the most frequent class.

Within each client, this is the client's most frequent class.
"""
_MAX_EXACT_INTEGER = 2**24
"""float32 represents all integers up to this one exactly."""


def profile(raw: RawSamples, *, are_classes: bool = True) -> list[ColumnProfile]:
    """Return a row for each column or array of ``raw``: those with a role, the features, and those left out.

    Samples are those of the file, also those that will be left out. ``are_classes`` says whether labels are classes.
    """
    roles = {"client": raw.owner, "label": raw.label, **raw.metadata}
    rows = [
        _describe_words(raw.names.get(role, role), words, "kept" if role.startswith(KEEP) else role)
        for role, words in roles.items()
        if words is not None
    ]
    if raw.owner is not None and are_classes:
        rows = [
            replace(row, remarks=(*row.remarks, *_compare_classes(raw, raw.owner))) if row.became == "label" else row
            for row in rows
        ]
    left_out = [_describe_left_out(name, series) for name, series in raw.left_out.items()]
    if "order" in raw.metadata:
        left_out = [replace(row, remarks=()) for row in left_out]
    return [*rows, *_describe_features(raw, are_classes=are_classes), *left_out]


def _compare_classes(raw: RawSamples, owner: NDArray[np.str_]) -> list[str]:
    """Return a remark on clients that have no class in common with others."""
    known = (raw.label != "") & (owner != "")
    names, client = np.unique(owner[known], return_inverse=True)
    classes, label = np.unique(raw.label[known], return_inverse=True)
    occurs = np.zeros((len(names), len(classes)), np.bool_)
    occurs[client, label] = True
    return _find_strangers(names.tolist(), occurs, "class")


def _describe_words(name: str, words: NDArray[np.str_], became: str) -> ColumnProfile:
    """Return the row of words (n,), empty if missing; ``became`` is their role, or why they are left out."""
    known = words[words != ""]
    distinct, at = np.unique(known, return_index=True)
    first = tuple(distinct[np.argsort(at)[:_FIRST]].tolist())
    numbers = np.asarray([float(word) for word in distinct.tolist()]) if all(map(is_number, distinct)) else distinct[:0]
    kind = "numbers" if len(numbers) else "dates" if len(known) and all(map(is_date, distinct)) else "words"
    least, most = (float(numbers.min()), float(numbers.max())) if kind == "numbers" else (None, None)
    missing = 1 - len(known) / max(1, len(words))
    remarks: tuple[str, ...] = ()
    if kind == "dates" and became not in ("order", "label"):
        remarks = (
            f"has dates: {option('order')} {quote(name)} trains on earlier and tests on later samples, which may change"
            " every result",
        )
    return ColumnProfile(name, kind, missing, least, most, len(distinct), first, became, remarks)


def _describe_left_out(name: str, series: Any) -> ColumnProfile:
    """Return the row of a column that is no feature; ``series`` is None if the user left it out."""
    if series is None:
        return ColumnProfile(name, "", None, None, None, None, (), "left out", ())
    words = series.dropna().astype(str).str.strip()
    row = _describe_words(name, np.asarray(words.tolist(), dtype=object), "left out, not numbers")
    missing = 1 - float((words != "").sum()) / max(1, len(series))
    return replace(row, missing=missing, kind=row.kind if row.distinct else "empty")


def _describe_features(raw: RawSamples, *, are_classes: bool) -> Iterator[ColumnProfile]:
    """Yield the row of each column, or of each feature or channel of an array."""
    x = raw.x
    if x.dtype == np.uint8 and x.ndim > 2:
        levels = np.flatnonzero(sum(np.bincount(sample.ravel(), minlength=256) for sample in x))
        yield ColumnProfile(
            raw.names.get("features", "x"), "pixels", 0.0, float(levels[0]), float(levels[-1]), len(levels), (),
            "image of " + "x".join(map(str, x.shape[1:])), (),
        )  # fmt: skip
        return
    if x.ndim == 4 or (not raw.columns and x.shape[-1] > _MAX_ROWS):
        known = x[~np.isnan(x)]
        yield ColumnProfile(
            raw.names.get("features", "x"), "numbers", 1 - known.size / x.size, float(known.min(initial=np.inf)),
            float(known.max(initial=-np.inf)), None, (), f"{int(np.prod(x.shape[1:]))} features", (),
        )  # fmt: skip
        return
    judge = _Judge(raw).judge if are_classes else lambda *_, **__: []
    at, lacking = 0, _find_lacking(raw)
    noun = "feature" if x.ndim == 2 else "channel"
    for column in raw.columns or [None] * x.shape[-1]:
        width = 1 if column is None else len(column.features)
        values, name = x[..., at : at + width], f"{noun} {at}" if column is None else column.name
        at += width
        if column is not None and column.words:
            row = _describe_hot(name, column.words, values)
            yield replace(
                row, remarks=(*judge(values.argmax(axis=1), is_ordered=False), *lacking(values, has_words=True))
            )
        elif width > 1:
            row = _describe_numbers(name, values.reshape(-1), f"{width} features")
            yield replace(row, remarks=lacking(values))
        else:
            numbers = values.reshape(-1)
            row = _describe_numbers(name, numbers, noun)
            marks = raw.marks.get(name, ())
            kind = f"numbers ({' '.join(filter(None, marks))})" if any(marks) else row.kind
            remarks = (
                []
                if len(marks) < 2
                else [f"has cells with {' and '.join(each or 'no mark' for each in marks)}: are they the same unit?"]
            )
            remarks += _flag_numbers(name, numbers.astype(np.float64))
            if x.ndim == 2:
                remarks += [*judge(numbers, is_ordered=True), *lacking(values)]
            yield replace(row, kind=kind, remarks=tuple(remarks))


def _describe_hot(name: str, words: Sequence[str], hot: Floats) -> ColumnProfile:
    """Return the row of a column of ``words`` from its 0/1 features (n, words), NaN if missing."""
    known = hot[~np.isnan(hot).any(axis=1)]
    codes = known.argmax(axis=1)
    present, at = np.unique(codes, return_index=True)
    first = tuple(words[code] for code in present[np.argsort(at)[:_FIRST]].tolist())
    missing = 1 - len(known) / max(1, len(hot))
    return ColumnProfile(name, "words", missing, None, None, len(present), first, f"features: {listed(words, 6)}", ())


def _describe_numbers(name: str, values: Floats, became: str) -> ColumnProfile:
    known = values[~np.isnan(values)]
    distinct, at = np.unique(known, return_index=True)
    first = tuple(f"{number:.6g}" for number in distinct[np.argsort(at)[:_FIRST]].tolist())
    least, most = (float(distinct[0]), float(distinct[-1])) if len(distinct) else (None, None)
    missing = 1 - len(known) / max(1, len(values))
    return ColumnProfile(name, "numbers", missing, least, most, len(distinct), first, became, ())


def _flag_numbers(name: str, values: Floats) -> list[str]:
    """Return remarks on numbers (n,) that are no measurements: marks of missing values, time stamps, and ids."""
    known = values[~np.isnan(values)]
    distinct, counts = np.unique(known, return_counts=True)
    remarks = []
    marks = find_marks(distinct, counts)
    if marks:
        shown = [f"{mark:.6g}" for mark in marks]
        typed = ",".join(word if float(word) == mark else repr(mark) for word, mark in zip(shown, marks, strict=True))
        others = distinct[~np.isin(distinct, marks)]
        remarks.append(
            f"has {' and '.join(shown)} in {counts[np.isin(distinct, marks)].sum()} samples, far from its other values,"
            f" {others[0]:.6g} to {others[-1]:.6g}: if missing values are marked so, --na={typed}"
        )
    leave = f"--leave-out {quote(name)}"
    unit = _find_time_unit(distinct)
    if unit:
        remarks.append(
            f"may be a time stamp ({unit}), and later ones are all new: --order {quote(name)} trains on earlier and"
            f" tests on later samples, {leave} ignores it"
        )
    elif _is_id(name, known, distinct):
        is_gapless = len(distinct) == len(known) and distinct[-1] - distinct[0] == len(known) - 1
        remarks.append(f"looks like {'a row number' if is_gapless else 'an id'}: {leave} ignores it")
    large = distinct[np.abs(distinct) >= _MAX_EXACT_INTEGER]
    if not unit and len(np.unique(large.astype(np.float32))) < len(large):
        remarks.append(f"is rounded to 7 digits (float32): if it is an id, {leave}")
    return remarks


def find_marks(distinct: Floats, counts: NDArray[np.int64]) -> list[float]:
    """Return the values that likely mark missing ones, of sorted values (k,) and the number of samples of each.

    They are at the ends, at most three at each, in several samples each, and farther from their neighbours than all
    others are from each other; and they are written as such marks are, or very far away.
    """
    for removed in range(1, 2 * _MAX_MARKS + 1):
        for low in range(max(0, removed - _MAX_MARKS), min(removed, _MAX_MARKS) + 1):
            high = removed - low
            inner = distinct[low : len(distinct) - high]
            if len(inner) < 3:
                continue
            marks = [*distinct[:low], *distinct[len(distinct) - high :]]
            repeated = np.append(counts[:low], counts[len(counts) - high :])
            span = inner[-1] - inner[0]
            gaps = [inner[0] - mark if mark < inner[0] else mark - inner[-1] for mark in marks]
            if (repeated > 1).all() and all(
                gap > (span if _MARK.fullmatch(f"{mark:.6g}") else _FAR * span)
                for gap, mark in zip(gaps, marks, strict=True)
            ):
                more = find_marks(inner, counts[low : len(counts) - high])
                return sorted(float(mark) for mark in (*marks, *more))
    return []


def _find_time_unit(distinct: Floats) -> str:
    """Return the unit of time stamps, of which ``distinct`` are the sorted values; empty if they are something else."""
    if len(distinct) < 6 or not np.isfinite(distinct).all():
        return ""
    low, high = distinct[0], distinct[-1]
    unit = next((unit for unit, first in _TIMES.items() if first <= low and high <= 5 * first), "")
    if unit or (distinct != np.floor(distinct)).any():
        return unit
    for days, least, most in ((100, 19000101, 21001231), (1, 190001, 210012)):
        if low >= least and high <= most and np.isin(distinct // days % 100, range(1, 13)).all():
            if days == 1:
                return "months, as in 202603"
            if np.isin(distinct % 100, range(1, 32)).all():
                return "days, as in 20260331"
    return "days of Excel" if _EXCEL_DAYS[0] <= low and high <= _EXCEL_DAYS[1] else ""


def _is_id(name: str, known: Floats, distinct: Floats) -> bool:
    """Return whether numbers are likely ids: whole, and all different and sorted or gapless, or called so."""
    if len(distinct) < 3 or not np.isfinite(distinct).all() or (distinct != np.floor(distinct)).any():
        return False
    if len(distinct) < len(known):
        return len(distinct) > len(known) / 20 and _ID_NAME.fullmatch(name) is not None
    steps = np.diff(known)
    is_sorted = len(known) >= _MIN_SAMPLES and bool((steps > 0).all() or (steps < 0).all())
    is_gapless = distinct[-1] - distinct[0] == len(known) - 1
    return is_sorted or is_gapless or _ID_NAME.fullmatch(name) is not None


@dataclass
class _Judge:
    """Says whether a column alone predicts the label of ``raw``, in the whole file or within each client.

    A sample is predicted by the others with the same value and, if values are ordered, with the next lower and the next
    higher one. A tie is an error.
    """

    raw: RawSamples

    def __post_init__(self) -> None:
        known = np.flatnonzero(self.raw.label != "")
        self._rows = known[:: max(1, -(-len(known) // _MAX_JUDGED))]
        self._y = np.unique(self.raw.label[self._rows], return_inverse=True)[1]
        groups = {"": np.zeros_like(self._y)}
        if self.raw.owner is not None:
            groups[" within each client"] = np.unique(self.raw.owner[self._rows], return_inverse=True)[1]
        self._groups = [(where, group, self._count_base_errors(group)) for where, group in groups.items()]

    def judge(self, values: NDArray[Any], *, is_ordered: bool) -> list[str]:
        """Return a remark if ``values`` (n,) of a column predict the label."""
        if len(self._rows) < _MIN_SAMPLES:
            return []
        codes = np.unique(values[self._rows], return_inverse=True)[1]  # NaN is one value
        for where, group, base in self._groups:
            wrong = self._count_errors(codes, group, is_ordered=is_ordered) if base > 1 else base
            if wrong < base and wrong <= _MAX_ERRORS * base:
                right = 100 * (1 - wrong / len(self._y))
                return [
                    f"alone predicts {right:.0f} % of labels{where}: if it is an id, or known only after the outcome,"
                    " leave it out"
                ]
        return []

    def _count_base_errors(self, group: NDArray[np.int64]) -> int:
        """Return the number of samples that are not of the most frequent class of their group."""
        pairs, counts = np.unique(np.stack([group, self._y]), axis=1, return_counts=True)
        most = np.zeros(int(group.max(initial=0)) + 1, np.int64)
        np.maximum.at(most, pairs[0], counts)
        return len(self._y) - int(most.sum())

    def _count_errors(self, codes: NDArray[np.int64], group: NDArray[np.int64], *, is_ordered: bool) -> int:
        """Return the number of samples that are predicted wrongly, from the ranks of their values."""
        pairs, place = np.unique(np.stack([group, codes]), axis=1, return_inverse=True)
        place = place.reshape(-1)
        classes = int(self._y.max()) + 1
        if len(pairs[0]) * classes > 10**7:
            return len(self._y)
        counts = np.bincount(place * classes + self._y, minlength=len(pairs[0]) * classes).reshape(-1, classes)
        votes = counts.copy()
        if is_ordered:
            same = (pairs[0, 1:] == pairs[0, :-1])[:, None]
            votes[1:] += counts[:-1] * same
            votes[:-1] += counts[1:] * same
        own = votes[place]
        own[np.arange(len(own)), self._y] -= 1
        mine = own[np.arange(len(own)), self._y].copy()
        own[np.arange(len(own)), self._y] = -1
        return int((mine <= own.max(axis=1)).sum()) if classes > 1 else 0


def _find_lacking(raw: RawSamples) -> Any:
    """Return the function that returns remarks on clients without a value, or without a common word, of a column."""
    import pandas as pd

    names, owner = (np.empty(0), np.empty(0)) if raw.owner is None else np.unique(raw.owner, return_inverse=True)

    def find(values: Floats, *, has_words: bool = False) -> tuple[str, ...]:
        if len(names) < 2:
            return ()
        known = ~np.isnan(values[:, 0])
        has_value = np.bincount(owner[known], minlength=len(names)) > 0
        lacking = [str(each) for each in names[~has_value]]
        remarks = [f"has no value at all for {listed(lacking, 8)}"] if lacking and has_value.any() else []
        if has_words:
            table = pd.DataFrame(values[known] > 0).groupby(owner[known]).any().to_numpy()
            remarks += _find_strangers([str(each) for each in names[has_value]], table, "word")
        return tuple(remarks)

    return find


def _find_strangers(names: Sequence[str], occurs: NDArray[np.bool_], noun: str) -> list[str]:
    """Return a remark on clients that share no word or class with others; ``occurs`` is (clients, words).

    There is none if this is so for most clients: then they differ in what they have, and not in how it is written.
    """
    alone = occurs & (occurs.sum(axis=0) == 1)
    is_strange = occurs.any(axis=1) & (alone == occurs).all(axis=1)
    if len(names) < 2 or not 0 < is_strange.sum() <= max(1, len(names) / 2):
        return []
    strange = [name for name, strange in zip(names, is_strange, strict=True) if strange]
    return [f"has no {noun} in {listed(strange, 8)} that another client has: is it written differently there?"]


def find_scale_remarks(rows: Sequence[ColumnProfile]) -> list[str]:
    """Return a remark if features that vary have different scales, or values beyond 10."""
    sizes = {
        row.column: max(abs(row.least), abs(row.most))
        for row in rows
        if row.became in ("feature", "channel")
        and row.least is not None
        and row.most is not None
        and row.least < row.most
    }
    small, big = (pick(sizes, key=lambda name: sizes[name], default="") for pick in (min, max))
    if not sizes or not (sizes[big] > 10 * sizes[small] or sizes[big] > 10):
        return []
    spread = "" if small == big else f"'{small}' to {sizes[small]:.3g}, "
    return [f"features have different scales ({spread}'{big}' to {sizes[big]:.3g}): try --standardize"]


def format_lines(rows: Sequence[ColumnProfile], most: int) -> list[str]:
    """Return the columns as lines of text, at most ``most`` of them, and then all remarks.

    Columns with remarks come before others if some are left out. Long names and values are cut to fit into a terminal.
    """
    chosen = sorted(range(len(rows)), key=lambda at: (not rows[at].remarks, at))[:most]
    cells = [["column", "kind", "missing", "least", "most", "distinct", "first", "became"]]
    for at in sorted(chosen):
        row = rows[at]
        numbers = ["" if value is None else _format_number(value) for value in (row.least, row.most)]
        missing = "" if row.missing is None else f"{100 * row.missing:.3g} %"
        distinct = "" if row.distinct is None else str(row.distinct)
        first = ", ".join(
            _format_number(float(word)) if row.kind == "numbers" else _shorten(word, 14) for word in row.first
        )
        became = re.split("[:,]", row.became)[0]  # without the words, or why it was left out
        cells.append([row.column, row.kind, missing, *numbers, distinct, first, became])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = _WIDTH - sum(widths[1:6]) - widths[7] - 2 * 7
    widths[0] = min(widths[0], max(_MIN_NAME, room - min(_SOME_FIRST, widths[6])))
    widths[6] = min(widths[6], max(_MIN_FIRST, room - widths[0]))
    lines = []
    for line in cells:
        padded = [
            cell.rjust(width) if heading in _RIGHT else _fit(heading, cell, width).ljust(width)
            for heading, cell, width in zip(cells[0], line, widths, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    lines += [f"... ({len(rows)} columns in all)"] if len(rows) > most else []
    return lines + [f"WARNING: '{row.column}' {remark}" for row in rows for remark in row.remarks]


_RIGHT = ("missing", "least", "most", "distinct")
_WIDTH, _MIN_NAME, _MIN_FIRST, _SOME_FIRST = 80, 14, 7, 16
"""The characters of a line; the fewest of a name and of first values; those of first values before names are cut."""


def _fit(heading: str, cell: str, width: int) -> str:
    """Return the text of a cell in at most ``width`` characters; of several first values, those that fit."""
    while heading == "first" and len(cell) > width and ", " in cell:
        cell = cell.rpartition(", ")[0]
    return _shorten(cell, width)


def _format_number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.6g}"


def _shorten(text: str, width: int) -> str:
    """Return text on one line, without its middle if it is too long: names often differ only at the end."""
    line = " ".join(text.split())
    end = (width - 3) // 2
    return line if len(line) <= width else f"{line[: width - 3 - end]}...{line[len(line) - end :]}"
