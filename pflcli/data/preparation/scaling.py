"""Fills in missing values and standardizes features by the training samples of a partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import ClientScale, Codebook, floats
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds.partition import Partition
from pflcli.data.datasets._scaling import Floats, Scale, Scaling, fill_gaps, rows_of
from pflcli.data.preparation.preprocessing import numeric
from pflcli.errors import InputError


def pending_scaling(dataset: datasets.Dataset, book: Codebook) -> Scaling | None:
    """Return the scaling that an imported dataset still needs; None if it needs none."""
    if not (dataset.standardize or dataset.fill):
        return None
    return Scaling(
        standardize=dataset.standardize,
        fill=dataset.fill,
        numeric=numeric(book, dataset.x.shape[-1]),
        scale=Scale(np.asarray(book.mean), np.asarray(book.sd)) if book.mean else None,
        median=np.asarray(book.median) if book.median else None,
        by_client=dataset.by_client,
        scales={own.client: Scale(np.asarray(own.mean), np.asarray(own.sd)) for own in book.scales},
    )


def apply(partition: Partition, book: Codebook, scaling: Scaling) -> tuple[Partition, Codebook]:
    """Return the partition with missing values filled in and features standardized, and its codebook.

    Medians and scales are those of the training samples of clients that are not new. With ``by_client``, each client,
    also a new one, is standardized by its own training samples; raises InputError if it has samples but none to train
    on.
    """
    each = [np.arange(*partition.offsets[3 * client : 3 * client + 2]) for client in range(len(partition.names))]
    seen_rows = [rows for client, rows in enumerate(each) if partition.new is None or not partition.new[client]]
    train = np.concatenate([np.empty(0, np.int64), *seen_rows])
    x, median = fill_gaps(np.asarray(partition.x), train, scaling)
    book = replace(book, median=floats(median))
    if not scaling.standardize:
        return replace(partition, x=x.astype(np.float32)), book
    if scaling.by_client:
        x, scales = _standardize_by_client(partition, x, each, scaling)
        book = replace(book, scales=scales)
    else:
        scale = scaling.scale or Scale.fit(rows_of(x, train), scaling.numeric)
        x = scale.standardize(x)
        book = replace(book, mean=floats(scale.mean), sd=floats(scale.sd))
    return replace(partition, x=x.astype(np.float32)), book


def _standardize_by_client(
    partition: Partition, x: Floats, each: list[NDArray[np.int64]], scaling: Scaling
) -> tuple[Floats, tuple[ClientScale, ...]]:
    """Return features (n, ..., d) standardized by each client's own scale, and these scales."""
    x, scales = x.astype(np.float64), []
    for client, (name, train) in enumerate(zip(partition.names, each, strict=True)):
        own = slice(*partition.offsets[[3 * client, 3 * client + 3]])
        if own.start == own.stop:
            continue
        scale = scaling.scales.get(name)
        if scale is None and not len(train):
            raise InputError(
                f"client '{name}' has no training samples to standardize its features by",
                "leave it out, or standardize by all clients' training samples (pfl import --standardize)",
            )
        scale = scale or Scale.fit(rows_of(x, train), scaling.numeric)
        x[own] = scale.standardize(x[own])
        scales.append(ClientScale(name, floats(scale.mean), floats(scale.sd)))
    return x, tuple(scales)
