"""Heart disease of 740 patients, predicted from 13 features; each of the four clients is a hospital.

Janosi, Steinbrunn, Pfisterer and Detrano (1989), UCI 45, https://doi.org/10.24432/C52P4X; it is included in pfl.
Features and split follow FLamby (Ogier du Terrail et al., 2022, https://arxiv.org/abs/2210.04620):

- Slope, vessels and thallium test are left out, because they are missing for most patients; then patients with another
  missing value are left out.
- Chest pain and resting ECG become one 0/1 feature per level except the first. Any disease (1 to 4) is class 1.
- Each hospital's patients are split by scikit-learn's ``train_test_split``, 66 % for training: 199 and 104 patients in
  Cleveland, 172 and 89 in Hungary, 30 and 16 in Switzerland, 85 and 45 in Long Beach. The split is stratified by class
  if each class has more than two patients; Switzerland has one without disease. ``--keep-test`` keeps the split.
- All features, also 0/1 features, are standardized by each hospital's own training patients. A feature that is constant
  among them becomes 0; FLamby divides it by 1e-9.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.core.datasets import Samples, Scaling, missing_root_error
from pflcli.core.errors import InputError

CLASSES = 2
NAMES = ("no disease", "disease")
SHAPE = "13"
LICENCE = "CC BY 4.0; Janosi, Steinbrunn, Pfisterer, Detrano"
FILES = ("processed.*.data",)
HOSPITALS = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "long-beach": "va"}
"""The names of the clients, and their names in file names."""
NUMBERS = {
    "age": 0, "sex": 1, "blood pressure": 3, "cholesterol": 4, "blood sugar": 5,
    "heart rate": 7, "angina": 8, "ST depression": 9,
}  # fmt: skip
LEVELS = {"chest pain": 2, "resting ECG": 6}
"""Columns of the files, from 0; columns 10 to 12 are left out, and 13 is the disease."""
_COLUMNS, _DISEASE = 14, 13
_TRAIN = 0.66
_MIN_PATIENTS_PER_CLASS = 3
"""Minimum number of patients per class for a stratified split."""


@dataclass(frozen=True)
class Config:
    """Options of the dataset."""

    standardize: Literal["client", "federation", "none"] = "client"
    """standardize features by each hospital's own training patients (client), by those of all hospitals
    (federation), or not at all"""
    split: Annotated[int, Ge(0)] = 43
    """draw the test patients that --keep-test keeps with this seed; 43 gives FLamby's split"""


def load(root: Path | None, *, download: bool = False, cfg: Config | None = None) -> Samples:
    """Return the patients by hospital, with float64 features (n, 13) that the partition standardizes."""
    cfg = cfg or Config()
    folder = Path(__file__).parent / "hospitals" if root is None else root
    paths = {name: folder / f"processed.{word}.data" for name, word in HOSPITALS.items()}
    if download or not all(path.is_file() for path in paths.values()):
        raise missing_root_error(
            "another copy of heart-disease", *FILES, source="without --root, the files of pfl are used"
        )
    records = {name: _read_complete_patients(path) for name, path in paths.items()}
    values = np.concatenate(list(records.values()))
    x, features = _make_features(values)
    disease = (values[:, _DISEASE] > 0).astype(np.int64)
    owner = np.repeat(list(records), [len(rows) for rows in records.values()])
    return Samples(
        x,
        disease,
        CLASSES,
        owner,
        names=NAMES,
        features=features,
        is_test=np.concatenate([_mark_test_patients(disease[owner == name], cfg.split) for name in records]),
        scaling=None if cfg.standardize == "none" else Scaling(cfg.standardize),
    )


def _read_complete_patients(path: Path) -> NDArray[np.float64]:
    """Return the values (n, 14) of the patients in a file without missing values in the used columns."""
    cells = [line.split(",") for line in path.read_text(encoding="ascii").splitlines() if line]
    for number, row in enumerate(cells, 1):
        if len(row) != _COLUMNS:
            raise InputError(f"{path}: line {number} has {len(row)} values, not {_COLUMNS}")
    values = np.asarray([[np.nan if cell.strip() == "?" else float(cell) for cell in row] for row in cells])
    used = [*NUMBERS.values(), *LEVELS.values(), _DISEASE]
    values = values.reshape(-1, _COLUMNS)
    return np.asarray(values[~np.isnan(values[:, used]).any(axis=1)])


def _make_features(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the features (n, d) of patients (n, 14), and their names (d,)."""
    columns = {name: values[:, at] for name, at in NUMBERS.items()}
    for name, at in LEVELS.items():
        for level in np.unique(values[:, at])[1:]:
            columns[f"{name}={level:g}"] = (values[:, at] == level).astype(np.float64)
    return np.column_stack(list(columns.values())), tuple(columns)


def _mark_test_patients(disease: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return a mask (n,) of a hospital's test patients."""
    from sklearn.model_selection import train_test_split

    rows, counts = np.arange(len(disease)), np.bincount(disease, minlength=CLASSES)
    stratified = disease if counts.min() >= _MIN_PATIENTS_PER_CLASS else None
    _, test = train_test_split(rows, train_size=_TRAIN, random_state=seed, stratify=stratified)
    return np.isin(rows, test)
