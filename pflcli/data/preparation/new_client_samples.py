"""Reads, preprocesses and splits the samples of a client that joins after the rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, kept_columns
from pflcli.artifacts.codebook import ClientScale, Codebook, floats
from pflcli.artifacts.kept_columns import Kept
from pflcli.core import rng, splits
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError
from pflcli.core.reporter import Reporter
from pflcli.core.tasks import Labels
from pflcli.data.formats import Like, RawSamples
from pflcli.data.formats import labels as formats
from pflcli.data.formats.given_splits import parse_splits
from pflcli.data.preparation import cleaning
from pflcli.data.preparation.preprocessing import Preprocessing, Scale, find_numeric_features, flatten_rows
from pflcli.data.preparation.user_data import UserData


@dataclass(frozen=True)
class NewClientSamples:
    """The preprocessed samples ``x`` (n, ...), ``y`` (n,) of a client, sorted by split.

    ``rows`` (n,) are their rows in the file, ``offsets`` (4,) the boundaries of the splits. ``scale`` is the client's
    own scale, None if all clients share one. ``kept`` are the kept columns that the file has.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    scale: ClientScale | None
    kept: Kept


def read(
    source: UserData,
    preprocessing: Preprocessing,
    book: Codebook,
    labels: Labels,
    client: str,
    number: int,
    fractions: tuple[float, float, float],
    seed: int,
    reporter: Reporter,
) -> NewClientSamples:
    """Read the samples of the client with this ``number``; split them by ``fractions`` unless the file has splits.

    Raises InputError for an unknown or missing class, for a label that ``labels`` are not, and for samples that the
    model does not take.
    """
    raw = source.read(reporter)
    x, y = preprocessing.fill_gaps(raw), _read_labels(raw, labels, book, preprocessing.name)
    rows = np.arange(len(y))
    if "split" in raw.metadata:
        split = parse_splits(raw, rows, source.path.name)
        parts = [np.flatnonzero(split == at) for at in range(len(SPLITS))]
    else:
        parts = splits.cut(rng.generator(seed, "split", number).permutation(rows), fractions)
    scale = None
    if book.scales:
        if not len(parts[0]):
            raise InputError(f"client '{client}' has no training samples to standardize its features by")
        scale = Scale.fit(flatten_rows(x, parts[0]), find_numeric_features(book, x.shape[-1]))
        preprocessing = replace(preprocessing, scale=scale)
    rows = np.concatenate(parts)
    return NewClientSamples(
        preprocessing.standardize(x)[rows],
        y[rows],
        rows,
        client_blocks.offsets([len(part) for part in parts]),
        None if scale is None else ClientScale(client, floats(scale.mean), floats(scale.sd)),
        kept_columns.select(cleaning.list_kept(cleaning.read_names(raw)), rows),
    )


def _read_labels(raw: RawSamples, labels: Labels, book: Codebook, name: str) -> NDArray[Any]:
    """Return the classes (n,) of samples, from their names, or numbers; InputError for a missing or unknown one."""
    like, task = Like(name, tuple(book.class_names(labels.outputs)), ()), labels.fields and labels.task()
    raw = formats.read_numbers(raw, task) if task else formats.read_labels(raw, like)
    missing = raw.label == ""
    if missing.any():
        row = int(np.argmax(missing))
        raise InputError(
            f"{raw.place(row, 'label', ())}: no value", f"each sample needs a {'number' if task else 'class'}"
        )
    rows = np.arange(len(raw.label))
    return formats.parse_numbers(raw, rows, task, fits=False) if task else formats.number_classes(raw, rows, like)[0]
