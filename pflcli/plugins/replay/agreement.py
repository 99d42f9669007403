"""How far two artifacts agree: the same bytes, or the largest difference between the numbers that they store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds import predictions, read_labels
from pflcli.artifacts.reader import Artifact
from pflcli.core.tasks import CLASSES

_DRAWN = (".md", ".png", ".vl.json", ".txt")
"""Files that are drawn or written from others, and the secret of noise."""
_TIMED = ("seconds", "cost", "made_with")
"""Columns and keys with one of these in their name depend on seconds or the machine; ``cost`` is a sentence on them."""


@dataclass(frozen=True)
class Agreement:
    """How far the repetition of an artifact agrees with the original."""

    difference: float = 0.0
    """the largest absolute difference between numbers; infinite if something else differs, such as a shape"""
    where: str = ""
    """the file and the array, column or key with this difference"""
    test_samples: int = 0
    """test samples with predicted classes; 0 for other kinds of artifacts"""
    changed: int = 0
    """those of them with another predicted class"""
    accuracy: tuple[float, float] | None = None
    """accuracy on all test samples before and after"""

    @property
    def digits(self) -> int | None:
        """The digits after the decimal point to which all numbers agree; None if they are the same."""
        return None if self.difference == 0 else max(0, math.floor(-math.log10(min(self.difference, 1.0))))


def compare(old: Artifact, new: Artifact) -> Agreement:
    """Return how far two artifacts of the same kind agree, apart from seconds; raises InputError if one is damaged."""
    worst = (0.0, "")
    for name in sorted({*old.manifest.files, *new.manifest.files}):
        if name.endswith(_DRAWN):
            continue
        if not (name in old.manifest.files and name in new.manifest.files):
            worst = math.inf, name
        elif old.manifest.files[name] != new.manifest.files[name]:
            worst = max(worst, _compare_files(old, new, name))
    return Agreement(*worst, **_compare_classes(old, new))


def _compare_files(old: Artifact, new: Artifact, name: str) -> tuple[float, str]:
    """Return the largest difference in one file, and where it is."""
    readers = {".h5": _read_h5, ".safetensors": _read_tensors, ".csv": _read_table, ".json": _read_json}
    read = readers.get(Path(name).suffix)
    if read is None:
        return math.inf, name
    worst, later = (0.0, ""), dict(read(new, name))
    for key, value in read(old, name):
        worst = max(worst, (_difference(value, later.pop(key, None)), f"{name}, {key}"))
    return (math.inf, f"{name}, {next(iter(later))}") if later else worst


def _difference(before: Any, after: Any) -> float:
    """Return the largest absolute difference of two arrays, numbers or texts; infinite if they cannot be subtracted."""
    one, other = np.asarray(before), np.asarray(after)
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind or one.dtype.kind not in "biuf":
        return 0.0 if one.shape == other.shape and np.array_equal(one, other) else math.inf
    if not one.size:
        return 0.0
    one, other = one.astype(float), other.astype(float)
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        distances = np.where(is_same, 0.0, np.abs(one - other))
    return float(np.max(np.nan_to_num(distances, nan=math.inf)))


def _read_h5(artifact: Artifact, name: str) -> Iterator[tuple[str, Any]]:
    import h5py

    with artifact.h5(name) as file:
        names: list[str] = []
        file.visititems(lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None)
        yield from ((key, file[key][...]) for key in names)
        yield from ((f"@{key}", value) for key, value in file.attrs.items())


def _read_tensors(artifact: Artifact, name: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    artifact.check(name)
    with artifact.parsing(name), safe_open(artifact.path / name, "numpy") as file:
        yield from ((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118


def _read_table(artifact: Artifact, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each cell, but for seconds, by row and column."""
    for number, row in enumerate(artifact.table(name)):
        yield from ((f"row {number}, {key}", _as_number(cell)) for key, cell in row.items() if not _is_timed(key))


def _is_timed(name: str) -> bool:
    return any(word in name for word in _TIMED)


def _as_number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _read_json(artifact: Artifact, name: str) -> Iterator[tuple[str, Any]]:
    yield from _leaves(artifact.json(name), "")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield each number, text and null of a JSON value, but for seconds, by its path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            if not _is_timed(str(name)):
                yield from _leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, float(value) if isinstance(value, int | float) else str(value)


def _compare_classes(old: Artifact, new: Artifact) -> dict[str, Any]:
    """Return the numbers of predicted classes and accuracies on test samples; empty unless both predict classes."""
    both = (old, new)
    if any(each.kind != "predictions" or read_labels(each.manifest, 0).kind != CLASSES for each in both):
        return {}
    (one, labels), (other, others) = (_read_classes(each) for each in both)
    if one.shape != other.shape or not one.size:
        return {}
    accuracy = float(np.mean(one == labels)), float(np.mean(other == others))
    return {"test_samples": one.size, "changed": int(np.sum(one != other)), "accuracy": accuracy}


def _read_classes(artifact: Artifact) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the predicted classes (n,) and the labels (n,) of test samples."""
    answers = predictions.read(artifact, "test")
    return answers.parts["p"].argmax(axis=1), answers.y
