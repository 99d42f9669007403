"""Air quality in Beijing as a quantity: PM2.5 in ug/m3 some hours after a window of 48; each client is a station.

Records, features, missing values and the split by time are those of `air-quality`. A window leads to the hour
``horizon`` hours after its last one, and its first feature is the past of PM2.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from pflcli.core.datasets import Samples
from pflcli.core.engine.tasks.quantity import Quantity
from pflcli.data.datasets.air_quality import SCALES, read_windows
from pflcli.data.datasets.air_quality import Config as WindowConfig

CLASSES = 1
SHAPE = "48x13"
LICENCE = "CC BY 4.0"
FILES = ("PRSA_Data_20130301-20170228/PRSA_Data_*.csv", "PRSA_Data_*.csv", "beijing_air.npz")


@dataclass(frozen=True)
class Config(WindowConfig):
    """Options of the dataset."""

    horizon: Annotated[int, Ge(1)] = 1
    """predict PM2.5 this many hours after the last hour of a window"""
    hours: Annotated[int, Ge(1)] = 48
    """the hours of a window"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return windows (n, hours, 13) float32 in order of time within a station, and PM2.5 (n,)."""
    cfg = cfg or Config()
    samples = read_windows("air-quality-pm25", root, cfg, download=download, hours=cfg.hours, horizon=cfg.horizon)
    shift, scale = SCALES["PM2.5"]
    return replace(samples, task=Quantity(unit="\N{MICRO SIGN}g/m\N{SUPERSCRIPT THREE}", past=(0, shift, scale)))
