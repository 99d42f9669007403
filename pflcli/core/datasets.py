"""Datasets, one file each, and the interface of such a file: ``Dataset``."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.core import registry
from pflcli.core.errors import InputError, PflError, UsageError

SPLITS = ("train", "validation", "test")
"""Training samples train, validation samples choose, test samples measure."""
_SAMPLES_PER_CHECK = 1 << 16


@dataclass(frozen=True)
class Scaling:
    """The preprocessing that follows the split of the samples: medians in place of NaN (``fill``), standardization.

    ``standardize_by`` is "federation" (by the training samples of all clients), "client" (by each client's own), or
    empty for no standardization.
    """

    standardize_by: str
    fill: bool = False


@dataclass(frozen=True)
class Samples:
    """A dataset before it is partitioned.

    ``x`` (n, ...) are uint8 images (n, H, W) or (n, H, W, C), float32 features (n, d) or series (n, length, d), or
    int16 tokens (n, length). ``y`` (n,) are labels 0..classes-1, or those of another ``task``, for whose number of
    outputs ``classes`` then stands. ``owner`` (n,) are the names of natural clients, or None.

    If ``ordered``, the rows (of each owner) are sorted by time and are split in that order, never at random; ``gap``
    rows of each owner are left out between two splits, so that windows of different splits do not overlap. ``group``
    (n,) is the same for samples that belong together, such as one patient's; a client has them in one split.
    ``coarse`` (n,) is each sample's superclass. ``names`` (classes,) and ``features`` (d,) are the names of classes and
    features, if they have any. ``is_test`` (n,) and ``is_validation`` (n,) mark the published test and validation sets.
    ``scaling`` is the scaling that features still need. ``kept`` are columns by which scores are grouped, words (n,)
    each, empty where a value is missing; no method sees them.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int
    owner: NDArray[np.str_] | None = None
    ordered: bool = False
    gap: int = 0
    coarse: NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    is_test: NDArray[np.bool_] | None = None
    scaling: Scaling | None = None
    is_validation: NDArray[np.bool_] | None = None
    group: NDArray[np.int64] | None = None
    task: Any = None
    kept: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)

    def take(self, rows: NDArray[np.int64]) -> Samples:
        """Return some of the samples."""
        names = ("x", "y", "owner", "coarse", "is_test", "is_validation", "group")
        known = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        kept = {name: words[rows] for name, words in self.kept.items()}
        return replace(self, kept=kept, **{name: values[rows] for name, values in known.items()})

    def sha256(self) -> str:
        """Return a hash of the data: the same samples in two folders make the same artifact."""
        digest = hashlib.sha256()
        for array in (self.x, self.y):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        if self.owner is not None:
            digest.update("\n".join(self.owner.tolist()).encode())
        if self.ordered:
            digest.update(f"ordered, gap {self.gap}".encode())
        if self.group is not None:
            digest.update(b"group")
            digest.update(np.ascontiguousarray(self.group).data)
        if self.coarse is not None:
            digest.update(np.ascontiguousarray(self.coarse).data)
        for name, words in self.kept.items():
            digest.update("\n".join(["kept", name, *words.tolist()]).encode())
        return digest.hexdigest()

    def check(self, name: str) -> None:
        """Raise InputError if arrays differ in length, if no model takes ``x``, or if a value is invalid.

        A feature is invalid if it is not finite, and a label if it is out of range.
        """
        marks = {"is_test": self.is_test, "is_validation": self.is_validation, "group": self.group}
        kept = {f"kept {name}": words for name, words in self.kept.items()}
        for key, array in {"y": self.y, "client": self.owner, "coarse": self.coarse, **marks, **kept}.items():
            if array is not None and len(array) != len(self.x):
                raise InputError(f"{name}: x has {len(self.x)} rows, but {key} has {len(array)}")
        if self.names and len(self.names) != self.classes:
            raise InputError(f"{name} has {self.classes} classes, but {len(self.names)} names")
        self._check_kind(name)
        if len(self.y) == 0:
            raise InputError(f"{name} has no samples")
        gaps = self.scaling is not None and self.scaling.fill
        for first in range(0, len(self.x), _SAMPLES_PER_CHECK) if np.issubdtype(self.x.dtype, np.floating) else ():
            piece = self.x[first : first + _SAMPLES_PER_CHECK]
            sound = ~np.isinf(piece) if gaps else np.isfinite(piece)
            if not sound.all():
                row, *place = np.argwhere(~sound)[0].tolist()
                value = piece[(row, *place)]
                raise InputError(f"{name}: x is {value} in row {first + row}, column {','.join(map(str, place))}")
        if self.task is not None:
            self.task.check(name, self.y)
        elif len(bad := np.flatnonzero((self.y < 0) | (self.y >= self.classes))):
            raise InputError(f"{name}: row {bad[0]} has label {self.y[bad[0]]}, outside 0..{self.classes - 1}")
        if self.x.dtype == np.int16 and not (self.x.min() >= 0 and self.x.max() < self.classes):
            row = int(np.argwhere((self.x < 0) | (self.x >= self.classes))[0][0])
            raise InputError(f"{name}: row {row} has tokens outside 0..{self.classes - 1}, the classes to predict")
        if self.coarse is not None and self.coarse.min() < 0:
            raise InputError(f"{name}: row {np.argmin(self.coarse)} has superclass {self.coarse.min()}, below 0")
        if self.ordered and self.gap and self.owner is None:
            raise InputError(f"{name}: samples that are ordered with a gap need owners: time is relative to the owner")
        if self.ordered and self.group is not None:
            raise InputError(f"{name}: samples are either split by time or grouped, not both")

    def _check_kind(self, name: str) -> None:
        kind, rank = self.x.dtype, self.x.ndim
        images = kind == np.uint8 and rank in (3, 4)
        if not (images or (np.issubdtype(kind, np.floating) and rank >= 2) or (kind == np.int16 and rank == 2)):
            raise InputError(
                f"{name}: x is {kind} {self.x.shape}, neither uint8 images (n, H, W) or (n, H, W, C), nor floating "
                "features (n, ...), nor int16 tokens (n, length)"
            )


class Dataset(Protocol):
    """The interface of a file in this folder; ``load``, ``CLASSES``, ``SHAPE`` and ``LICENCE`` are required."""

    CLASSES: int
    """number of classes, or of outputs if ``load`` returns samples of another task"""
    SHAPE: str
    """the shape of a sample, as ``pfl list datasets`` shows it"""
    LICENCE: str
    """the licence of the data"""

    NAMES: tuple[str, ...] = ()
    """names of the classes, in the order of their labels"""
    FILES: tuple[str, ...] = ()
    """paths in ``--root``, of which one is enough; ``*`` matches anything"""
    MADE_FROM: tuple[str, ...] = ()
    """the datasets whose files it is made from"""
    Config: type[Any] | None = None
    """its options, if any: a frozen dataclass with a default for each, and an explanation under each"""

    @abstractmethod
    def load(self, root: Path | None, *, download: bool = False, cfg: Any = None) -> Samples:
        """Return all samples from the files in ``root``; raises UsageError or InputError if they are missing.

        A dataset without ``Config`` leaves out ``cfg``.
        """


def load(name: str) -> Dataset:
    """Return the dataset with this name; raises UsageError with the nearest name, InputError for an invalid file."""
    dataset: Dataset = registry.load("datasets", name, Dataset)
    return dataset


def find_files(root: Path | None, patterns: Sequence[str]) -> list[Path]:
    """Return the files in ``root``, sorted by name, that match the first of ``patterns`` that matches any."""
    if root is None:
        return []
    for pattern in patterns:
        paths = sorted(path for path in root.glob(pattern) if path.is_file())
        if paths:
            return paths
    return []


def missing_root_error(name: str, *files: str, source: str = "") -> PflError:
    """Return the error for a dataset whose files were not found.

    ``source`` explains where to get the files, if pfl cannot download them.
    """
    return UsageError(
        f"{name} is not included in pfl: name the folder with {' or '.join(files)}",
        f"--root FOLDER ({source})" if source else "--root FOLDER, or --root FOLDER --download to fetch it",
    )
