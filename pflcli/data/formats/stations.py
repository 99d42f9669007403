"""Hourly records of air stations: UCI 501's CSV files, one per station with a row per hour, or an NPZ file of all.

Both are read into ``{station: (values (hours, d), NaN if missing; wind directions (hours,), -1 if missing)}``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError
from pflcli.foreign import read_npz, reading, require_short

_TIME = ("year", "month", "day", "hour")
_HOUR = timedelta(hours=1)
_SPARSE = 100
"""A file with fewer than one in this many hours is taken as damaged."""


def read_csv_stations(
    paths: list[Path], features: tuple[str, ...], directions: tuple[str, ...]
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Read ``PRSA_Data_<station>_<first>-<last>.csv`` files.

    All values of hours without a row are missing. Raises InputError, with file and line, for rows that cannot be read.
    """
    records: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
    for path in paths:
        with reading(path, "CSV"), path.open(newline="", encoding="utf-8-sig") as file:
            station, values, direction = _station(path, csv.reader(file), features, directions)
            require_short(str(path), station)
        if station in records:
            raise InputError(f"{path}: station {station} is also in another file")
        records[station] = values, direction
    return records


def _station(
    path: Path, rows: Iterator[list[str]], features: tuple[str, ...], directions: tuple[str, ...]
) -> tuple[str, NDArray[np.float64], NDArray[np.int64]]:
    heading = next(rows, list[str]())
    missing = [name for name in (*_TIME, *features, "wd", "station") if name not in heading]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}'")
    time, columns = ([heading.index(name) for name in names] for names in (_TIME, features))
    wind, station = heading.index("wd"), heading.index("station")
    codes = {name: code for code, name in enumerate(directions)} | {"NA": -1, "": -1}
    read: dict[datetime, tuple[list[float], int]] = {}
    stations = set()
    for line, row in enumerate(rows, 2):
        if len(row) != len(heading):
            raise InputError(f"{path}, line {line} has {len(row)} columns, and the header has {len(heading)}")
        if row[wind] not in codes:
            raise InputError(f"{path}, line {line}: '{row[wind]}' is not a wind direction")
        try:
            year, month, day, hour = (int(row[place]) for place in time)
            when = datetime(year, month, day, hour)
            values = [float("nan") if row[place] in ("NA", "") else float(row[place]) for place in columns]
        except ValueError as error:
            raise InputError(f"{path}, line {line}: {error}") from None
        if when in read:
            raise InputError(f"{path}, line {line}: {when:%Y-%m-%d %H}h is a duplicate")
        read[when] = values, codes[row[wind]]
        stations.add(row[station])
    if len(stations) != 1:
        raise InputError(f"{path} has {len(stations)} stations instead of one")
    span = (max(read) - min(read)) // _HOUR + 1
    if span > _SPARSE * len(read):  # a mistyped year would take all memory
        raise InputError(f"{path} has rows for only {len(read)} of {span} hours")
    return stations.pop(), *_every_hour(read, span)


def _every_hour(
    read: dict[datetime, tuple[list[float], int]], span: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    first = min(read)
    place = np.asarray([(when - first) // _HOUR for when in read])
    measured = np.asarray([values for values, _ in read.values()])
    values = np.full((span, measured.shape[1]), np.nan)
    values[place] = measured
    direction = np.full(span, -1, dtype=np.int64)
    direction[place] = [code for _, code in read.values()]
    return values, direction


def read_npz_stations(
    paths: list[Path], features: tuple[str, ...], directions: tuple[str, ...]
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Read the one NPZ file; raises InputError if its arrays do not match each other."""
    path = paths[0]
    values, wind, names, stored_features, stations = read_npz(
        path, "values", "wind_dir", "wind_dir_names", "features", "stations"
    )
    _match(path, values, wind, names, stations, stored_features.tolist(), features)
    place = [stored_features.tolist().index(feature) for feature in features]
    code = np.asarray([directions.index(name) if name in directions else -1 for name in names.tolist()])
    return {
        str(station): (values[index][:, place].astype(np.float64), code[wind[index]].astype(np.int64))
        for index, station in enumerate(stations)
    }


def _match(
    path: Path,
    values: NDArray[Any],
    wind: NDArray[Any],
    names: NDArray[Any],
    stations: NDArray[Any],
    stored_features: list[str],
    features: tuple[str, ...],
) -> None:
    missing = [feature for feature in features if feature not in stored_features]
    if missing:
        raise InputError(f"{path} has no feature '{missing[0]}'")
    sound = values.ndim == 3 and values.shape[0] == len(stations) and values.shape[2] == len(stored_features)
    if not sound or wind.shape != values.shape[:2] or not (wind.min() >= 0 and wind.max() < len(names)):
        raise InputError(f"{path}: values {values.shape} and wind_dir {wind.shape} do not match its stations and names")
