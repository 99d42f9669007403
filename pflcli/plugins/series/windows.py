"""Cut long records into windows: a sample is the last W rows of a client, its label the target H rows later.

A record is the rows of a client in order of time. All columns of a row are channels of a window, and the target is the
last one, so that models see its past. Rows that are missing, or missing values that are left out, break a record: no
window spans a break, and those that would are counted. Overlapping windows are split by time, and so many are left out
after each cut that no two splits share a row, be it as a row of a window or as the label of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import Column
from pflcli.artifacts.kinds.dataset import Dataset
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.foreign import require_room
from pflcli.core.wording import counted, listed
from pflcli.data.formats import RawSamples, is_number
from pflcli.data.formats.cells import is_date
from pflcli.data.preparation.cleaning import CleanSamples, sort_by_time

_TOLERANCE = 0.5
"""Steps of time that differ from the median step by less than this share of it are no break: months differ in days."""
_LONG = 50
"""Median rows of a client that may be a record rather than samples."""
_REGULAR = 0.9
"""The share of steps of a record that are no breaks."""
_SHARED = 0.75
"""The most different times of clients that have them in common, as a share of the rows."""


def apply(clean: CleanSamples, name: str, asked: Mapping[str, int], *, asks: bool) -> CleanSamples:
    """Return the windows of the rows ``clean``, called ``name`` in errors, that the options ``asked`` name.

    Without options, these are the rows themselves. Raises UsageError for options without an effect, and for rows
    without clients, times or numbers as labels; InputError if no window fits into a record, and, if it ``asks``, for
    long records without ``window``.
    """
    if not asked.get("window"):
        if given := [option for option in ("horizon", "every") if option in asked]:
            raise UsageError(f"--{given[0]} has an effect only with --window", "--window 48, or leave it out")
        if asks and "window" not in asked:
            _ask(clean, name)
        return clean
    dataset, times = clean.dataset, clean.times
    if dataset.labels is None:
        raise UsageError("--window makes samples whose labels are numbers", "--task quantity or --task count")
    if times is None:
        raise UsageError("--window needs the time of each row", "--order COL, a column of dates or numbers")
    if dataset.owner is None:
        raise UsageError("--window cuts the record of each client, and rows have none", "--client COL")
    if dataset.x.ndim != 2:
        raise InputError(f"{name}: --window cuts rows of numbers, and samples have shape {dataset.x.shape[1:]}")
    window, horizon, every = asked["window"], asked.get("horizon", 1), asked.get("every", 1)
    records = _find_records(dataset.owner, times)
    _require_different_times(name, records, times)
    step = _find_step(records, times)
    at, broken = _cut(records, times, step, (window, horizon, every))
    if not len(at):
        raise InputError(
            f"{name}: no client has {window + horizon} rows in a row, {_describe(step, clean.raw)} apart",
            "a smaller --window or --horizon",
            "a record with a row for each step, as pandas.DataFrame.resample makes",
        )
    values = np.column_stack([dataset.x, dataset.y]).astype(dataset.x.dtype)
    require_room(f"{name} in windows", len(at) * window * values.shape[1] * values.itemsize)
    order = np.concatenate([*records.values()])
    place = np.empty(len(order), np.int64)  # of each row in the joined records
    place[order] = np.arange(len(order))
    windows = np.lib.stride_tricks.sliding_window_view(values[order], window, axis=0)[place[at[:, 0]]]
    label = clean.raw.names.get("label", "label")
    made = replace(
        dataset,
        x=np.ascontiguousarray(windows.transpose(0, 2, 1)),
        y=dataset.y[at[:, 2]],
        owner=dataset.owner[at[:, 0]],
        features=(*dataset.features, label) if dataset.features else (),
        kept={column: words[at[:, 1]] for column, words in dataset.kept.items()},
        gap=-(-(window + horizon) // every) - 1,
        labels=replace(
            dataset.labels, fields={**(dataset.labels.fields or {}), "past": [dataset.x.shape[1], 0.0, 1.0]}
        ),
    )
    return replace(
        clean,
        dataset=made,
        columns=(*clean.columns, Column(label)) if clean.columns else (),
        remarks=(*clean.remarks, *_remark(made, asked, broken, _describe(step, clean.raw))),
        facts={"windows": {"rows": len(dataset.y), "broken": sum(broken.values()), "step": step}},
    )


def _find_records(owner: NDArray[np.str_], times: NDArray[np.float64]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each client in order of their ``times`` (n,)."""
    names, number = np.unique(owner, return_inverse=True)
    order = np.lexsort((times, number))
    parts = np.split(order, np.cumsum(np.bincount(number))[:-1])
    return dict(zip(names.tolist(), parts, strict=True))


def _find_step(records: Mapping[str, NDArray[np.int64]], times: NDArray[np.float64]) -> float:
    """Return the median time between rows of a client; nan if no client has two."""
    steps = np.concatenate([np.diff(times[rows]) for rows in records.values()])
    return float(np.median(steps)) if len(steps) else float("nan")


def _is_break(times: NDArray[np.float64], step: float) -> NDArray[np.bool_]:
    """Return after which of a record's rows but the last (n - 1,) another one is missing, or comes too early."""
    return np.asarray(np.abs(np.diff(times) - step) >= _TOLERANCE * step)


def _cut(
    records: Mapping[str, NDArray[np.int64]], times: NDArray[np.float64], step: float, asked: tuple[int, int, int]
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Return the first and the last row of each window and that of its label, (n, 3), and how many each client loses.

    ``asked`` are window, horizon and stride.
    """
    window, horizon, every = asked
    found, broken = [], {}
    for client, rows in records.items():
        runs = np.concatenate([[0], np.cumsum(_is_break(times[rows], step))])
        first = np.arange(0, len(rows) - window - horizon + 1, every)
        is_whole = runs[first] == runs[first + window + horizon - 1]
        found.append(rows[first[is_whole][:, None] + np.asarray([0, window - 1, window + horizon - 1])])
        broken[client] = int((~is_whole).sum())
    return np.concatenate(found), broken


def _require_different_times(name: str, records: Mapping[str, NDArray[np.int64]], times: NDArray[np.float64]) -> None:
    """Raise InputError for a client with two rows of the same time."""
    for client, rows in records.items():
        same = np.flatnonzero(np.diff(times[rows]) == 0)
        if len(same):
            raise InputError(
                f"{name}: {counted(len(same), 'row')} of client '{client}' with the time of another one, the first "
                f"after {same[0]} rows",
                "--client COL that tells them apart, such as the machine",
                "leave such rows out",
            )


def _describe(step: float, raw: RawSamples) -> str:
    """Return a step of time in words: of dates in days and hours, of numbers as it is."""
    words = raw.metadata["order"]
    are_dates = raw.dialect.date_format is not None or not all(map(is_number, words[:1].tolist()))
    return str(timedelta(seconds=round(step))) if are_dates else f"{step:g}"


def _remark(made: Dataset, asked: Mapping[str, int], broken: Mapping[str, int], step: str) -> list[str]:
    """Return what the user should know of the windows: how many were left out, and how they will be split."""
    lost = sum(broken.values())
    lines = [
        f"windows of {counted(asked['window'], 'row')} at steps of {step}, with the label that is "
        f"{counted(asked.get('horizon', 1), 'row')} later, for a split by time"
    ]
    if lost:
        lines.append(f"{lost} of {lost + len(made.y)} windows span a gap in time and are left out")
    assert made.owner is not None
    if without := sorted(broken.keys() - {*made.owner.tolist()}):
        lines.append(f"WARNING: clients without a window: {listed(without, 8)}")
    return lines


def _ask(clean: CleanSamples, name: str) -> None:
    """Raise UsageError if rows look like a long record: of each client one every so often, with a number as label."""
    dataset = clean.dataset
    if dataset.labels is None or dataset.owner is None or dataset.x.ndim != 2 or dataset.split is not None:
        return
    sizes = np.unique(dataset.owner, return_counts=True)[1]
    if dataset.group is not None or np.median(sizes) < _LONG:
        return
    column = clean.raw.names.get("order", "")
    if clean.times is not None:
        is_record = _is_record(dataset.owner, clean.times)
    else:
        column = next(_find_times(clean), "")
        is_record = bool(column)
    if is_record:
        raise UsageError(
            f"{name} has a record of each client: a row at each step of '{column}', {np.median(sizes):g} rows in the "
            "median: is a sample a window of rows, or a row?",
            f"a window of 48 rows, its label 6 rows later: --order '{column}' --window 48 --horizon 6",
            "a row: --window 0",
        )


def _find_times(clean: CleanSamples) -> Iterator[str]:
    """Yield the columns that may be the time of a record: of dates, or of numbers that clients have in common."""
    raw = clean.raw
    assert raw.owner is not None
    for name, cells in raw.left_out.items():
        words = np.asarray([] if cells is None or cells.isna().any() else cells.astype(str).str.strip(), np.str_)
        if len(words) and all(map(is_date, words[:20].tolist())):
            with suppress(PflError):  # dates that --date-format has to read
                _, times = sort_by_time(replace(raw, metadata={"order": words}), np.arange(len(words)))
                if _is_record(raw.owner, times):
                    yield name
    first = np.cumsum([0, *(len(column.features) for column in raw.columns)])
    for column, at in zip(raw.columns, first.tolist(), strict=False):
        times = raw.x[:, at]
        # A number that no two clients have in common is rather that of a row.
        is_shared = not (column.words or column.size) and len(np.unique(times)) < _SHARED * len(times)
        if is_shared and not np.isnan(times).any() and _is_record(raw.owner, times):
            yield column.name


def _is_record(owner: NDArray[np.str_], times: NDArray[np.float64]) -> bool:
    """Return whether nearly all rows of clients are a step of ``times`` (n,) apart, and no two at the same time."""
    records = _find_records(owner, times)
    step = _find_step(records, times)
    if not step > 0 or any((np.diff(times[rows]) == 0).any() for rows in records.values()):
        return False
    return bool(np.mean(np.concatenate([_is_break(times[rows], step) for rows in records.values()])) <= 1 - _REGULAR)
