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

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.data.datasets import Samples, needs_root
from pflcli.data.formats.stations import read_csv_stations, read_npz_stations
from pflcli.errors import InputError, UsageError, closest

CLASSES = 5
SHAPE = "48x13"
LICENCE = "CC BY 4.0"
FILES = ("PRSA_Data_20130301-20170228/PRSA_Data_*.csv", "PRSA_Data_*.csv", "beijing_air.npz")
LEVELS = (35, 75, 115, 150)
NAMES = ("up to 35", "35 to 75", "75 to 115", "115 to 150", "above 150")
"""PM2.5 in ug/m3."""
HOURS = 48
FILL = 6
SCALES = {
    "PM2.5": (80, 80), "PM10": (100, 90), "SO2": (15, 20), "NO2": (50, 35), "CO": (1200, 1200), "O3": (60, 60),
    "TEMP": (13, 11), "PRES": (1010, 10), "DEWP": (2, 14), "RAIN": (0, 1), "WSPM": (2, 1),
}  # fmt: skip
"""The shift and the scale of each feature, in ug/m3, degrees Celsius, hPa, mm and m/s."""
DIRECTIONS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
"""The directions from which the wind comes, clockwise in steps of 22.5 degrees."""
FEATURES = (*SCALES, "wind sine", "wind cosine")


@dataclass(frozen=True)
class Config:
    """Options of the dataset."""

    stride: Annotated[int, Ge(1)] = 6
    """begin a window every this many hours; 6 gives about as many per station as FedHAM has, 49 and more no overlap"""
    stations: tuple[str, ...] = ()
    """use only these stations; the default is all"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return windows (n, 48, 13) float32 in order of time within a station."""
    cfg = cfg or Config()
    stride = cfg.stride
    paths = [] if root is None else [sorted(Path(root).glob(pattern)) for pattern in FILES]
    files = next((group for group in paths if group), [])
    if download or not files:
        raise needs_root("air-quality", *FILES, source="download it from https://archive.ics.uci.edu/dataset/501")
    read = read_npz_stations if files[0].suffix == ".npz" else read_csv_stations
    x, y, owner = [], [], []
    records = read(files, tuple(SCALES), DIRECTIONS)
    for station in cfg.stations:
        if station not in records:
            raise UsageError(f"air-quality has no station '{station}'", closest(station, records))
    for station, (values, direction) in records.items():
        if cfg.stations and station not in cfg.stations:
            continue
        windows, level = cut_windows(values, direction, stride)
        x.append(windows)
        y.append(level)
        owner += [station] * len(level)
    if not owner:
        raise InputError(f"{files[0]} has no {HOURS} complete hours in a row")
    # A window uses the hours from FILL before its start to its target: windows this far apart do not share an hour.
    gap = -(-(HOURS + 1 + FILL) // stride) - 1
    return Samples(
        np.concatenate(x),
        np.concatenate(y),
        CLASSES,
        np.asarray(owner),
        ordered=True,
        gap=gap,
        names=NAMES,
        features=FEATURES,
    )


def cut_windows(
    values: NDArray[np.float64], direction: NDArray[np.int64], stride: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return windows (n, 48, 13) and the level (n,) of the hour after each, of one station's hours.

    ``values`` (hours, 11) with NaN where missing, in the order of SCALES; ``direction`` (hours,) -1 where missing.
    """
    shift, scale = np.asarray(list(SCALES.values()), dtype=np.float64).T
    angle = np.where(direction < 0, np.nan, direction * (2 * np.pi / len(DIRECTIONS)))
    features = np.column_stack([(values - shift) / scale, np.sin(angle), np.cos(angle)]).astype(np.float32)
    features = fill_short_gaps(features, FILL)
    if len(features) <= HOURS:
        return np.empty((0, HOURS, features.shape[1]), np.float32), np.empty(0, np.int64)
    missing = np.cumsum(np.concatenate([[0], np.isnan(features).any(axis=1)]))
    starts = np.arange(0, len(features) - HOURS, stride)
    target = values[starts + HOURS, 0]
    keep = (missing[starts + HOURS] == missing[starts]) & ~np.isnan(target)
    windows = np.lib.stride_tricks.sliding_window_view(features, HOURS, axis=0)[starts[keep]]
    # A value on the bound belongs to the better level.
    return windows.transpose(0, 2, 1), np.digitize(target[keep], LEVELS, right=True).astype(np.int64)


def fill_short_gaps(values: NDArray[np.float32], limit: int) -> NDArray[np.float32]:
    """Return ``values`` (hours, d) with each NaN replaced by the last value before it, at most ``limit`` hours old."""
    hour = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, hour), axis=0)
    usable = (last >= 0) & (hour - last <= limit)
    return np.where(usable, np.take_along_axis(values, np.maximum(last, 0), axis=0), np.float32(np.nan))
