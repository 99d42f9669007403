"""The laws of datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import config, datasets, rng
from pflcli.core.datasets import Dataset, Samples
from pflcli.core.errors import PflError
from pflcli.plugins.checks.laws import DoubtfulError, Subject, law, other_process
from pflcli.workflow.admission import NotApplicable, require

_MIN_SAMPLES = 10
"""Samples of a class from which a value that separates it is no accident."""


def _load(subject: Subject) -> tuple[Dataset, Samples]:
    code = datasets.load(subject.name)
    cfg = {} if code.Config is None else {"cfg": config.build(code.Config, subject.options, subject.name)}
    try:
        return code, code.load(subject.root, **cfg)
    except PflError as error:
        if subject.root is None and "--root" in " ".join(error.fix):
            raise NotApplicable(f"its files are not here: --root FOLDER; {error.message}") from None
        raise


def _load_classes(subject: Subject) -> Samples:
    samples = _load(subject)[1]
    if samples.task is not None:
        raise NotApplicable(f"its labels are no classes: the task is {samples.task.kind}")
    return samples


@law("datasets")
def samples_are_valid(subject: Subject) -> None:
    """Arrays have the same length, values are finite, labels are in range, and models take the samples.

    ``pfl partition`` refuses anything else.
    """
    samples = _load(subject)[1]
    samples.check(subject.name)
    is_whole = samples.task is not None or np.issubdtype(samples.y.dtype, np.integer)
    require(is_whole, f"labels are {samples.y.dtype} instead of integers")


@law("datasets")
def the_description_fits_the_samples(subject: Subject) -> None:
    """``CLASSES`` and ``NAMES`` are those of the samples, and ``LICENCE`` is not empty.

    ``pfl list datasets`` shows them without loading the data.
    """
    code, samples = _load(subject)
    require(samples.classes == code.CLASSES, f"CLASSES is {code.CLASSES}; the samples have {samples.classes} classes")
    require(not code.NAMES or len(code.NAMES) == code.CLASSES, f"NAMES has {len(code.NAMES)} of {code.CLASSES} names")
    require(bool(code.LICENCE), "LICENCE is empty")


@law("datasets")
def loading_again_gives_the_same_samples(subject: Subject) -> None:
    """Loading the dataset again gives the same samples in the same order, and changes no global generator.

    A partition is drawn by row numbers, so a seed repeats it only if the rows are the same.
    """
    before = rng.read_globals()
    first, second = (_load(subject)[1] for _ in range(2))
    require(before == rng.read_globals(), "loading changes a global generator: draw with numpy.random.default_rng(0)")
    same = np.array_equal(first.x, second.x, equal_nan=first.x.dtype.kind == "f") and np.array_equal(first.y, second.y)
    require(same, "loading again gives other samples")


@law("datasets")
def another_process_loads_the_same_samples(subject: Subject) -> None:
    """Another process, in which Python orders sets and hashes words otherwise, loads the same samples.

    A partition is made again, or resumed, by other processes.
    """
    same = digest_samples(subject) == other_process.call(digest_samples, subject)
    require(same, "another process loads other samples: is something in the order of a set, or of hashes?")


def digest_samples(subject: Subject) -> str:
    """Return a hash of the samples."""
    return _load(subject)[1].sha256()


@law("datasets")
def every_class_has_samples(subject: Subject) -> None:
    """Every class has a sample (a warning).

    A class without samples is often a label that is counted from one.
    """
    samples = _load_classes(subject)
    empty = np.setdiff1d(np.arange(samples.classes), samples.y)
    if len(empty):
        raise DoubtfulError(f"no sample has label {', '.join(map(str, empty[:5]))} of 0 to {samples.classes - 1}")


@law("datasets")
def no_feature_tells_the_label(subject: Subject) -> None:
    """No single value of a sample separates a class from the others without any error (a warning).

    A column that contains the label, or is computed from it, makes every method look perfect.
    """
    samples = _load_classes(subject)
    if found := find_telling_value(samples.x, samples.y, samples.classes):
        column, label = found
        named = f"'{samples.features[column]}'" if column < len(samples.features) else str(column)
        raise DoubtfulError(f"value {named} alone tells whether a sample has label {label}")


def find_telling_value(x: NDArray[Any], y: NDArray[np.int64], classes: int) -> tuple[int, int] | None:
    """Return the number of a value of samples (n, ...) that separates a label from all others, and this label.

    None without such a value. Raises NotApplicable if there are too few samples to tell.
    """
    x = x.reshape(len(y), -1)
    labels = [label for label in range(classes) if (y == label).sum() >= _MIN_SAMPLES]
    if len(labels) < 2:
        raise NotApplicable(f"fewer than two classes have {_MIN_SAMPLES} samples")
    known = y if len(labels) == classes else np.where(np.isin(y, labels), y, -1)
    low = np.asarray([x[known == label].min(axis=0) for label in labels], dtype=np.float64)  # (classes, d)
    high = np.asarray([x[known == label].max(axis=0) for label in labels], dtype=np.float64)
    for row, label in enumerate(labels):
        others_low, others_high = np.delete(low, row, axis=0), np.delete(high, row, axis=0)
        apart = ((others_low > high[row]) | (others_high < low[row])).all(axis=0)
        if apart.any():
            return int(np.flatnonzero(apart)[0]), label
    return None


@law("datasets")
def samples_are_not_repeated(subject: Subject) -> None:
    """Nine of ten samples differ from every sample before them (a warning).

    If a sample has copies, some are in the training data and others in the test data, or at several clients.
    """
    samples = _load(subject)[1]
    flat = np.ascontiguousarray(samples.x).reshape(len(samples.y), -1)
    rows = np.column_stack(
        [flat.view(np.uint8).reshape(len(flat), -1), samples.y.astype("<i8").view(np.uint8).reshape(-1, 8)]
    )
    _, first, place = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    repeated = np.flatnonzero(first[place] != np.arange(len(rows)))
    if 10 * len(repeated) <= len(rows):
        return
    where = ""
    if samples.owner is not None:
        shared = int((samples.owner[repeated] != samples.owner[first[place[repeated]]]).sum())
        where = f", {shared} of them at another client"
    raise DoubtfulError(f"{len(repeated)} of {len(rows)} samples are the same as one before them{where}")
