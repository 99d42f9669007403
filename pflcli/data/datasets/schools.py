"""Mathematics achievement of 7,185 students, predicted from 8 features; each of the 160 clients is a school.

High School and Beyond, 1980, base year: a survey by the National Center for Education Statistics (US Department of
Education), ICPSR 7896, in the selection of Raudenbush and Bryk (2002), Hierarchical Linear Models, chapter 4. It is
included in pfl. A school has 14 to 67 students. The label is the score in a test of mathematics, in points.

Features of a student: socio-economic status (a standardized composite), minority, and female. Features of the school:
its size in students, whether it is Catholic, the share of students in the academic track, its disciplinary climate, and
whether more than 40 % of its students are of minorities. All are standardized by the training samples of all clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pflcli.core import tasks
from pflcli.core.datasets import Samples, Scaling, missing_root_error
from pflcli.core.foreign import read_npz

CLASSES = 1
SHAPE = "8"
LICENCE = "public domain (US government, NCES)"
FILES = ("schools.npz",)
FEATURES = ("ses", "minority", "female", "size", "catholic", "academic track", "discipline", "high minority")


@dataclass(frozen=True)
class Config:
    """Options of the dataset."""

    features: Literal["all", "student"] = "all"
    """use the features of students and schools (all), or the three of students, so that schools differ more"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return the students by school, with float64 features (n, 8) that the partition standardizes."""
    path = (Path(__file__).parent if root is None else root) / FILES[0]
    if download or not path.is_file():
        raise missing_root_error("another copy of schools", *FILES, source="without --root, the file of pfl is used")
    student, school, place, score, name = read_npz(path, "student", "school", "place", "score", "name")
    x = np.column_stack([student, school[place]]).astype(np.float64)
    used = len(FEATURES) if cfg is None or cfg.features == "all" else student.shape[1]
    return Samples(
        x[:, :used],
        score / 1000,
        CLASSES,
        np.asarray([f"s{each}" for each in name[place]]),
        features=FEATURES[:used],
        scaling=Scaling("federation"),
        task=tasks.parse("quantity", "points"),
    )
