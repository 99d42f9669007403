"""The laws of datasets."""

from __future__ import annotations

import numpy as np

from pflcli import config
from pflcli.data import datasets
from pflcli.data.datasets import Dataset, Samples
from pflcli.errors import PflError
from pflcli.laws import NotApplicable, Subject, law, require


def _load(subject: Subject) -> tuple[Dataset, Samples]:
    code = datasets.load(subject.name)
    cfg = {} if code.Config is None else {"cfg": config.build(code.Config, subject.options, subject.name)}
    try:
        return code, code.load(subject.root, **cfg)
    except PflError as error:
        if subject.root is None and "--root" in " ".join(error.fix):
            raise NotApplicable(f"its files are not here: --root FOLDER; {error.message}") from None
        raise


@law("datasets")
def samples_are_valid(subject: Subject) -> None:
    """Arrays have the same length, values are finite, labels are in range, and models take the samples.

    ``pfl partition`` refuses anything else.
    """
    _load(subject)[1].check(subject.name)


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
    """Loading the dataset again gives the same samples in the same order.

    A partition is drawn by row numbers, so a seed repeats it only if the rows are the same.
    """
    first, second = (_load(subject)[1] for _ in range(2))
    same = np.array_equal(first.x, second.x, equal_nan=first.x.dtype.kind == "f") and np.array_equal(first.y, second.y)
    require(same, "loading again gives other samples")
