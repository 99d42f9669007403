"""Checks samples read from a file: names, missing values, copies and the order of time."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import Column
from pflcli.artifacts.kinds.dataset import Dataset
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import InputError, UsageError
from pflcli.core.tasks import Labels
from pflcli.core.wording import counted, listed
from pflcli.data.formats import KEEP, Like, RawSamples, labels, spellings
from pflcli.data.formats.cells import MISSING, list_missing, plain
from pflcli.data.formats.given_splits import parse_splits

_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_DATE_FORMATS = (
    "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%d %b %Y",
    "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d/%m/%y", "%m/%d/%y", "%d.%m.%y",
)  # fmt: skip
"""Dates as people write them, for the error that proposes one."""


@dataclass(frozen=True)
class CleanSamples:
    """Checked samples, the columns of their features, the number of ``dropped`` samples, and remarks for the user.

    ``raw`` are all samples of the file, with one spelling for each name. ``times`` (n,) are those of ``--order`` since
    the earliest, in seconds for dates; None without it. ``facts`` are for the summary.
    """

    dataset: Dataset
    columns: tuple[Column, ...]
    dropped: int
    remarks: tuple[str, ...]
    raw: RawSamples
    times: NDArray[np.float64] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def clean(
    raw: RawSamples,
    name: str,
    *,
    missing: str = "error",
    standardize_by: str = "",
    like: Like | None = None,
    task: Task | None = None,
    are_classes: bool = False,
    drop_duplicates: bool = False,
) -> CleanSamples:
    """Check ``raw``, called ``name`` in errors, and return it with labels as numbers: of the ``task``, or of classes.

    ``missing``: "error" raises an error for a missing value, "drop" leaves its sample out, "median" keeps NaN, which
    the partition fills in, with one more feature per column that marks missing values. ``standardize_by`` is
    "federation", "client" or empty. Features are float32, or float64 if the partition fills them in or standardizes
    them. Classes and columns are those of ``like``, if given. ``are_classes``: see ``labels.number_classes``. With
    ``drop_duplicates``, only the first of several equal samples is kept. Raises InputError, with the place of the first
    bad value.
    """
    raw.require_same_length(name)
    is_images = raw.x.dtype == np.uint8 and raw.x.ndim > 2
    if is_images and standardize_by:
        raise UsageError("--standardize does not apply to images: pixels are always scaled to [0, 1]", "leave it out")
    x = raw.x if is_images or raw.x.dtype in (np.float32, np.float64) else raw.x.astype(np.float64)
    _require_storable(raw, name)
    remarks = list(raw.remarks)
    raw = read_names(raw)
    raw = labels.read_labels(raw, like, are_classes=are_classes) if task is None else labels.read_numbers(raw, task)
    lost = _find_incomplete(raw, x, missing)
    if lost.all():
        raise InputError(f"{name}: every sample lacks a value", *_column_hints(raw, x, lost))
    rows = np.flatnonzero(~lost)
    is_ordered, times = "order" in raw.metadata, None
    if is_ordered:
        rows, times = sort_by_time(raw, rows)
    require_in_range(x, raw, set(rows.tolist()) if len(rows) < len(x) else None)
    y, classes = (
        labels.number_classes(raw, rows, like, are_classes=are_classes)
        if task is None
        else (labels.parse_numbers(raw, rows, task), [])
    )
    is_copy, copies = _find_copies(raw, rows, are_dropped=drop_duplicates)
    if drop_duplicates:
        rows, y = rows[~is_copy], y[~is_copy]
    split = parse_splits(raw, rows, name) if "split" in raw.metadata else None
    remarks += _loss_remarks(raw, x, lost) + copies
    owner = raw.owner
    if len(rows) < len(x) or is_ordered:
        x, owner = x[rows], None if owner is None else owner[rows]
    columns, fill = raw.columns, missing == "median" and not is_images
    if fill:
        x, columns = mark_gaps(x, columns, like)
        gaps = [column.name for column in columns if column.gaps]
        remarks += [f"pfl partition will fill in, and mark with one more feature: {listed(gaps, 10)}"] if gaps else []
        x = x.astype(np.float64)
    if not (standardize_by or missing == "median"):
        x = x.astype(np.uint8 if is_images else np.float32, copy=False)
    kind = None if task is None else Labels.of(task)
    features = tuple(feature for column in columns for feature in column.all_features)
    dataset = Dataset(x, y, classes, owner, features, bool(standardize_by), fill, labels=kind)
    groups = raw.metadata.get("group")
    group = None if groups is None else np.unique(groups[rows], return_inverse=True)[1].astype(np.int64)
    by_client = standardize_by == "client"
    kept = {name: words[rows] for name, words in list_kept(raw).items()}
    dataset = replace(dataset, by_client=by_client, split=split, group=group, is_ordered=is_ordered, kept=kept)
    times = None if times is None else times[rows]
    return CleanSamples(dataset, columns, len(lost) - len(rows), tuple(remarks), raw, times)


def list_kept(raw: RawSamples) -> dict[str, NDArray[np.str_]]:
    """Return the words (n,) of each kept column, by its name."""
    return {role.removeprefix(KEEP): words for role, words in raw.metadata.items() if role.startswith(KEEP)}


def read_names(raw: RawSamples) -> RawSamples:
    """Return the samples with one spelling for each client, group and kept value; see ``spellings.read``.

    In a kept column, the same words are missing values as among features.
    """

    def read(words: NDArray[np.str_], role: str) -> NDArray[np.str_]:
        is_kept = role.startswith(KEEP)
        is_name = is_kept or role in ("client", "group")
        dialect = raw.dialect if is_name else replace(raw.dialect, fold_case=False)
        words = np.where(np.isin(words, list_missing(dialect)), "", words) if is_kept else words
        noun = "value" if is_kept else role
        return spellings.read(
            words, noun, lambda row: raw.place(row, role, ()), dialect, asks=is_name, is_declared=is_kept
        )

    metadata = {role: read(words, role) for role, words in raw.metadata.items()}
    return replace(raw, owner=None if raw.owner is None else read(raw.owner, "client"), metadata=metadata)


def _find_copies(raw: RawSamples, rows: NDArray[np.int64], *, are_dropped: bool) -> tuple[NDArray[np.bool_], list[str]]:
    """Return which of ``rows`` (n,) equal an earlier one in features, label and client, and a remark on copies.

    Rows of a table that differ in their label alone are not counted, as other columns may tell them apart.
    """
    import pandas as pd

    # Hashes, as pandas compares a table column by column, which takes 20 times as long with 100,000 columns.
    samples = pd.DataFrame({"sample": raw.hash_features(), "label": raw.label, "owner": raw.owner}).iloc[rows]
    is_copy = samples.duplicated().to_numpy()
    of_others = samples[~is_copy].duplicated(["sample", "label"])
    relabelled = samples[~is_copy][~of_others].duplicated("sample") & (not raw.columns)
    found = [
        f"{counted(int(each.sum()), 'sample')} with {what}"
        for each, what in (
            (is_copy & (not are_dropped), _COPY),
            (of_others, "the features and label of one of another client"),
            (relabelled, "the features of one of another class"),
        )
        if each.any()
    ]
    remarks = (
        [f"left out: {counted(int(is_copy.sum()), 'sample')} with {_COPY}"] if are_dropped and is_copy.any() else []
    )
    if found:
        way = ": --drop-duplicates keeps the first" if is_copy.any() and not are_dropped else ""
        remarks.append(f"WARNING: {', '.join(found)}; copies of training samples may be test samples{way}")
    return is_copy, remarks


_COPY = "the features, label and client of an earlier one"


def _require_storable(raw: RawSamples, name: str) -> None:
    """Raise InputError for names of clients, classes or columns that cannot be stored."""
    kept = {role: words for role, words in raw.metadata.items() if role.startswith(KEEP)}
    by_role = {"label": raw.label, **({} if raw.owner is None else {"client": raw.owner}), **kept}
    for role, names in by_role.items():
        unusable = [each for each in np.unique(names).tolist() if not _is_storable(each)]
        if unusable:
            row = int(np.flatnonzero(names == unusable[0])[0])
            raise InputError(f"{raw.place(row, role, ())}: the name {unusable[0]!a} cannot be stored", _RENAME)
    for each in [column.name for column in raw.columns] + [*raw.classes, *raw.names.values()]:
        if not _is_storable(each):
            raise InputError(f"{name}: the name {each!a} cannot be stored", _RENAME)


def _is_storable(name: str) -> bool:
    """Return whether a name can be written to every file: it has no NUL and no unpaired surrogate."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name)


_RENAME = "rename it: NUL and unpaired surrogates are not text"


def sort_by_time(raw: RawSamples, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return ``rows`` (n,) in order of time, by numbers or dates (ISO 8601, or ``--date-format``), and all times.

    Times are since the earliest, in seconds for dates. The sort is stable. Dates without a time zone are UTC, and dates
    are compared to the microsecond. Raises InputError, with the place of the first word that is neither or differs in
    kind from the others.
    """
    words = raw.metadata["order"][rows]
    different = np.unique(words).tolist()
    form = raw.dialect.date_format
    number_of = {word: plain(word, raw.dialect) for word in different}
    are_numbers = form is None and None not in number_of.values()
    time_of: dict[str, float | datetime] = {}
    for word in different:
        time = _parse_number(str(number_of[word])) if are_numbers else _parse_date(word, form)
        if time is None:
            place = raw.place(int(rows[np.argmax(words == word)]), "order", ())
            if form is not None:
                raise InputError(
                    f"{place}: '{word}' is not a date of --date-format '{form}'", *_suggest_formats(different)
                )
            problem = f"'{word}' is neither a number nor a date such as 2024-03-31 or 2024-03-31 12:30"
            raise InputError(
                f"{place}: {problem}", *(_suggest_formats(different) or ["write all as numbers or as dates"])
            )
        time_of[word] = time
    rank = {time: number for number, time in enumerate(sorted(set(time_of.values())))}
    first: Any = next(iter(rank))
    since = {
        word: (time - first) / (timedelta(seconds=1) if form or not are_numbers else 1)
        for word, time in time_of.items()
    }
    times = np.full(len(raw.label), np.nan)
    times[rows] = [since[word] for word in words.tolist()]
    return rows[np.argsort([rank[time_of[word]] for word in words.tolist()], kind="stable")], times


def _parse_number(word: str) -> float | None:
    """Return the number of a word; None for infinity. Integers stay integers: nanoseconds have too many digits."""
    if word.lstrip("+-").isdigit():
        return int(word)
    return None if word.endswith("inf") else float(word)


def _parse_date(word: str, form: str | None) -> datetime | None:
    try:
        date = datetime.fromisoformat(word) if form is None else datetime.strptime(word, form)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _suggest_formats(words: Sequence[str]) -> list[str]:
    """Return the options that read all ``words`` as dates; two if day and month cannot be told apart."""
    times = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S", " %I:%M %p")
    forms = [date + time for date in _DATE_FORMATS for time in times] + ["%H:%M", "%H:%M:%S"]
    fitting = [form for form in forms if all(_parse_date(word, form) for word in words if word)]
    return [f"--date-format {shlex.quote(form)} reads '{words[-1]}'" for form in fitting[:2]]


def _find_incomplete(raw: RawSamples, x: NDArray[np.float64], missing: str) -> NDArray[np.bool_]:
    """Return which samples (n,) are left out as they lack a value; raises InputError at the first if none may be."""
    holes = {
        "client": None if raw.owner is None else raw.owner == "",
        "label": raw.label == "",
    } | {role: words == "" for role, words in raw.metadata.items() if not role.startswith(KEEP)}
    if x.dtype.kind == "f" and missing != "median":
        holes["features"] = np.isnan(x.reshape(len(x), -1)).any(axis=1)
    known = {role: hole for role, hole in holes.items() if hole is not None}
    lost: NDArray[np.bool_] = np.logical_or.reduce(list(known.values()))
    if missing != "drop" and lost.any():
        row = int(np.argmax(lost))
        role = next(role for role, hole in known.items() if hole[row])
        at = np.argwhere(np.isnan(x[row]))[0].tolist() if role == "features" else []
        count = f"{lost.sum()} of {len(lost)} samples lack a value"
        ways = "--missing median fills it in" if role == "features" else "fill it in"
        word = "" if raw.cell is None else raw.cell(row, role, at).strip()
        tail = len(lost) - row
        is_word = word in MISSING and word != "" and raw.dialect.na is None
        raise InputError(
            f"{raw.place(row, role, at)}: no value" + (f", as '{word}' marks a missing one" if is_word else ""),
            f"{count}; {ways}, or --missing drop leaves the samples out",
            *([f"if '{word}' is a word like others: --na ''"] if is_word else []),
            *(
                [f"if it is a footer, such as a sum: --skip-footer {tail}"]
                if lost[row:].all() and tail <= 3 < row
                else []
            ),
        )
    return lost


def _missing_shares(raw: RawSamples, x: NDArray[np.float64]) -> dict[str, float]:
    """Return the share of missing values in each column of a table, the largest first."""
    if not raw.columns or x.dtype.kind != "f":
        return {}
    first = np.cumsum([0, *(len(column.features) for column in raw.columns[:-1])])
    shares = {column.name: float(np.isnan(x[:, at]).mean()) for column, at in zip(raw.columns, first, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _column_hints(raw: RawSamples, x: NDArray[np.float64], lost: NDArray[np.bool_]) -> list[str]:
    """Return hints about columns with many missing values."""
    worst = [f"{name} {100 * share:.0f} %" for name, share in _missing_shares(raw, x).items() if share >= 0.1][:4]
    if not worst or lost.mean() < 0.1:
        return []
    return [
        f"missing most often: {', '.join(worst)}",
        "--features without these columns, or --missing median, keeps more samples",
    ]


def _loss_remarks(raw: RawSamples, x: NDArray[np.float64], lost: NDArray[np.bool_]) -> list[str]:
    """Return remarks on the samples that are left out: how many, of which clients, and because of which columns."""
    if not lost.any():
        return []
    lines = [f"{lost.sum()} of {len(lost)} samples lack a value and are left out"]
    if raw.owner is not None:
        names, owner = np.unique(raw.owner, return_inverse=True)
        sizes, dropped = np.bincount(owner), np.bincount(owner, weights=lost).astype(int)
        losers = [at for at in np.argsort(-dropped / sizes, kind="stable") if 2 * dropped[at] > sizes[at] and names[at]]
        losses = [
            f"{names[at]} {'all' if dropped[at] == sizes[at] else f'{dropped[at]} of'} {sizes[at]}" for at in losers
        ]
        if losses:
            more = f", ... ({len(losses)} clients in all)" if len(losses) > 8 else ""
            lines.append(f"WARNING: clients lose most of their samples: {', '.join(losses[:8])}{more}")
    return lines + _column_hints(raw, x, lost)


def mark_gaps(
    x: NDArray[np.float64], columns: tuple[Column, ...], like: Like | None
) -> tuple[NDArray[np.float64], tuple[Column, ...]]:
    """Return features (n, ..., d + gaps) and columns, with one more feature after each column with missing values.

    It is 1 if the value is missing. With ``like``, the same columns as there have this feature.
    """
    flat = np.isnan(x).reshape(-1, x.shape[-1])
    names = {2: "feature", 3: "channel"}
    known = columns or tuple(Column(f"{names.get(x.ndim, 'feature')} {at}") for at in range(x.shape[-1]))
    fixed = {column.name: column.gaps for column in like.columns} if like else {}
    pieces, marked, at = [], [], 0
    for column in known:
        width = len(column.features)
        gaps = fixed.get(column.name, False) if fixed else bool(flat[:, at : at + width].any())
        pieces.append(x[..., at : at + width])
        if gaps:
            pieces.append(np.isnan(x[..., at : at + 1]).astype(np.float64))
        marked.append(replace(column, gaps=gaps))
        at += width
    if not columns and not any(column.gaps for column in marked):
        return x, ()
    return np.concatenate(pieces, axis=-1), tuple(marked)


def require_in_range(x: NDArray[np.float64], raw: RawSamples, rows: set[int] | None) -> None:
    """Raise InputError at the first value, among ``rows`` if given, that is too large for float32."""
    if x.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore"):
        if not (np.nanmax(x, initial=0) > _MAX_FLOAT32 or np.nanmin(x, initial=0) < -_MAX_FLOAT32):
            return
    for row, *at in np.argwhere(np.abs(x) > _MAX_FLOAT32).tolist():
        if rows is None or row in rows:
            value = x[(row, *at)]
            problem = "is not finite" if np.isinf(value) else "is too large for float32"
            raise InputError(
                f"{raw.place(row, 'features', at)}: {value:g} {problem}", "correct it, or leave the row out"
            )
