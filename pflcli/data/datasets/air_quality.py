"""Air quality in Beijing: predict the level of PM2.5 in the next hour from 48 hours; each client is a station.

Records: Chen (2017), UCI 501, https://archive.ics.uci.edu/dataset/501, 2013-03 to 2017-02, hourly; the task is FedHAM's
(section 6.1), on other stations and years. ``--root``: a folder with UCI's ``PRSA_Data_*.csv``, directly or in
``PRSA_Data_20130301-20170228``, or with ``beijing_air.npz`` (9 stations).

- Level 0..4: up to 35, 75, 115, 150 ug/m3, and above (GB 3095 and HJ 633, whose two worst levels of six are merged).
- 13 features per hour: six pollutants, temperature, pressure, dew point, rain, wind speed, sine and cosine of the wind
  direction. Each is shifted and scaled by fixed round numbers near the mean and deviation of such records
  (``SCALES``): nothing is estimated from the data, so no information about test hours leaks into training.
- A missing value is replaced by the last known one, at most 6 hours old. Windows with a longer gap, and windows whose
  next hour has no measured PM2.5, are left out.
- Windows overlap (``stride``), so each station is split by time: training first, test last. Windows that share an hour
  with two splits are left out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.core.datasets import Samples, find_files, missing_root_error
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.foreign import read_npz, reading, require_short

CLASSES = 5
SHAPE = "48x13"
LICENCE = "CC BY 4.0"
FILES = ("PRSA_Data_20130301-20170228/PRSA_Data_*.csv", "PRSA_Data_*.csv", "beijing_air.npz")
LEVELS = (35, 75, 115, 150)
NAMES = ("up to 35", "35 to 75", "75 to 115", "115 to 150", "above 150")
"""PM2.5 in ug/m3."""
HOURS = 48
"""Hours of a window."""
MAX_FILLED_HOURS = 6
"""Maximum age of a value that replaces a missing one."""
SCALES = {
    "PM2.5": (80, 80), "PM10": (100, 90), "SO2": (15, 20), "NO2": (50, 35), "CO": (1200, 1200), "O3": (60, 60),
    "TEMP": (13, 11), "PRES": (1010, 10), "DEWP": (2, 14), "RAIN": (0, 1), "WSPM": (2, 1),
}  # fmt: skip
"""The shift and the scale of each feature, in ug/m3, degrees Celsius, hPa, mm and m/s."""
DIRECTIONS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
"""The directions from which the wind comes, clockwise in steps of 22.5 degrees."""
FEATURES = (*SCALES, "wind sine", "wind cosine")
_TIME = ("year", "month", "day", "hour")
_HOUR = timedelta(hours=1)
_MAX_HOURS_PER_ROW = 100
"""A file whose rows are rarer than this is taken as damaged: a mistyped year would take all memory."""

Records = dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]
"""Each station's values (hours, 11), NaN if missing, in the order of SCALES, and wind directions (hours,), -1 if
missing."""


@dataclass(frozen=True)
class Config:
    """Options of the dataset."""

    stride: Annotated[int, Ge(1)] = 6
    """begin a window every this many hours; 6 gives about as many per station as FedHAM has, 49 and more no overlap"""
    stations: tuple[str, ...] = ()
    """use only these stations; the default is all"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return windows (n, 48, 13) float32 in order of time within a station."""
    samples = read_windows("air-quality", root, cfg or Config(), download=download)
    # A value on the bound belongs to the better level.
    return replace(samples, y=np.digitize(samples.y, LEVELS, right=True).astype(np.int64), classes=CLASSES, names=NAMES)


def read_windows(
    name: str, root: Path | None, cfg: Config, *, download: bool, hours: int = HOURS, horizon: int = 1
) -> Samples:
    """Return windows of so many ``hours`` of the dataset ``name``, with PM2.5 ``horizon`` hours after each as label."""
    paths = find_files(root, FILES)
    if download or not paths:
        raise missing_root_error(name, *FILES, source="download it from https://archive.ics.uci.edu/dataset/501")
    records = _read_npz(paths[0]) if paths[0].suffix == ".npz" else _read_csv(paths)
    for station in cfg.stations:
        if station not in records:
            raise UsageError(f"{name} has no station '{station}'", closest(station, records))
    x, y, owner = [], [], []
    for station, (values, direction) in records.items():
        if cfg.stations and station not in cfg.stations:
            continue
        windows, target = cut_windows(values, direction, cfg.stride, hours, horizon)
        x.append(windows)
        y.append(target)
        owner += [station] * len(target)
    if not owner:
        raise InputError(f"{paths[0]} has no {hours} complete hours in a row")
    # A window uses the hours from MAX_FILLED_HOURS before its start to its target: windows this far apart do not share
    # an hour.
    gap = -(-(hours + horizon + MAX_FILLED_HOURS) // cfg.stride) - 1
    return Samples(np.concatenate(x), np.concatenate(y), 1, np.asarray(owner), ordered=True, gap=gap, features=FEATURES)


def _read_csv(paths: list[Path]) -> Records:
    """Read UCI's files, one per station with a row per hour; all values of hours without a row are missing.

    Raises InputError, with file and line, for rows that cannot be read.
    """
    records: Records = {}
    for path in paths:
        with reading(path, "CSV"), path.open(newline="", encoding="utf-8-sig") as file:
            station, values, direction = _read_station(path, csv.reader(file))
            require_short(str(path), station)
        if station in records:
            raise InputError(f"{path}: station {station} is also in another file")
        records[station] = values, direction
    return records


def _read_station(path: Path, rows: Iterator[list[str]]) -> tuple[str, NDArray[np.float64], NDArray[np.int64]]:
    """Return the name, the values and the wind directions of the station in one file."""
    heading = next(rows, list[str]())
    missing = [name for name in (*_TIME, *SCALES, "wd", "station") if name not in heading]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}'")
    time, columns = ([heading.index(name) for name in names] for names in (_TIME, SCALES))
    wind, station = heading.index("wd"), heading.index("station")
    codes = {name: code for code, name in enumerate(DIRECTIONS)} | {"NA": -1, "": -1}
    by_hour: dict[datetime, tuple[list[float], int]] = {}
    stations = set()
    for line, row in enumerate(rows, 2):
        if len(row) != len(heading):
            raise InputError(f"{path}, line {line} has {len(row)} columns, and the header has {len(heading)}")
        if row[wind] not in codes:
            raise InputError(f"{path}, line {line}: '{row[wind]}' is not a wind direction")
        try:
            year, month, day, hour = (int(row[at]) for at in time)
            when = datetime(year, month, day, hour)
            measured = [float("nan") if row[at] in ("NA", "") else float(row[at]) for at in columns]
        except ValueError as error:
            raise InputError(f"{path}, line {line}: {error}") from None
        if when in by_hour:
            raise InputError(f"{path}, line {line}: {when:%Y-%m-%d %H}h is a duplicate")
        by_hour[when] = measured, codes[row[wind]]
        stations.add(row[station])
    if len(stations) != 1:
        raise InputError(f"{path} has {len(stations)} stations instead of one")
    first = min(by_hour)
    hours = (max(by_hour) - first) // _HOUR + 1
    if hours > _MAX_HOURS_PER_ROW * len(by_hour):
        raise InputError(f"{path} has rows for only {len(by_hour)} of {hours} hours")
    at = [(when - first) // _HOUR for when in by_hour]
    values, direction = np.full((hours, len(columns)), np.nan), np.full(hours, -1, dtype=np.int64)
    values[at] = [measured for measured, _ in by_hour.values()]
    direction[at] = [code for _, code in by_hour.values()]
    return stations.pop(), values, direction


def _read_npz(path: Path) -> Records:
    """Read the NPZ file of all stations; raises InputError if its arrays do not match each other."""
    values, wind, names, stored, stations = read_npz(
        path, "values", "wind_dir", "wind_dir_names", "features", "stations"
    )
    features = stored.tolist()
    missing = [feature for feature in SCALES if feature not in features]
    if missing:
        raise InputError(f"{path} has no feature '{missing[0]}'")
    is_sound = values.ndim == 3 and values.shape[0] == len(stations) and values.shape[2] == len(features)
    if not is_sound or wind.shape != values.shape[:2] or not (wind.min() >= 0 and wind.max() < len(names)):
        raise InputError(f"{path}: values {values.shape} and wind_dir {wind.shape} do not match its stations and names")
    columns = [features.index(feature) for feature in SCALES]
    codes = np.asarray([DIRECTIONS.index(name) if name in DIRECTIONS else -1 for name in names.tolist()])
    return {
        str(station): (values[at][:, columns].astype(np.float64), codes[wind[at]].astype(np.int64))
        for at, station in enumerate(stations)
    }


def cut_windows(
    values: NDArray[np.float64], direction: NDArray[np.int64], stride: int, hours: int, horizon: int
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return windows (n, hours, 13) of one station, and PM2.5 (n,) ``horizon`` hours after each.

    ``values`` and ``direction``: see ``Records``.
    """
    shift, scale = np.asarray(list(SCALES.values()), dtype=np.float64).T
    angle = np.where(direction < 0, np.nan, direction * (2 * np.pi / len(DIRECTIONS)))
    features = np.column_stack([(values - shift) / scale, np.sin(angle), np.cos(angle)]).astype(np.float32)
    features = fill_short_gaps(features, MAX_FILLED_HOURS)
    if len(features) < hours + horizon:
        return np.empty((0, hours, features.shape[1]), np.float32), np.empty(0)
    missing = np.cumsum(np.concatenate([[0], np.isnan(features).any(axis=1)]))
    starts = np.arange(0, len(features) - hours - horizon + 1, stride)
    target = values[starts + hours + horizon - 1, 0]
    keep = (missing[starts + hours] == missing[starts]) & ~np.isnan(target)
    windows = np.lib.stride_tricks.sliding_window_view(features, hours, axis=0)[starts[keep]]
    return windows.transpose(0, 2, 1), target[keep]


def fill_short_gaps(values: NDArray[np.float32], limit: int) -> NDArray[np.float32]:
    """Return ``values`` (hours, d) with each NaN replaced by the last value before it, at most ``limit`` hours old."""
    hour = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, hour), axis=0)
    usable = (last >= 0) & (hour - last <= limit)
    return np.where(usable, np.take_along_axis(values, np.maximum(last, 0), axis=0), np.float32(np.nan))
