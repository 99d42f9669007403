"""The samples by which clients choose lambda: validation samples, and stored samples where these are few.

The paper of kNN-Per suggests cross-validation for clients with few samples, in section 3. Here such a client also
chooses by the samples in its store, each of which is predicted by the others (leave-one-out). The global model has seen
these samples if the client trained, so that it looks better on them than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Embedded, Neighbours, Run, Stores, UnsuitedError, leave_out, select_client
from pflcli.methods.parts.folds import Folds

FEW = 5
"""By default, a client with fewer validation samples than this also chooses by stored samples."""

_NOT_STORED = {"i": -1, "f": np.nan}
"""The label of a query that is not stored, by the type of labels."""
_CHOICE = "choice"
"""The split of validation and stored samples by which clients choose."""


@dataclass(frozen=True)
class ChoiceSamples:
    """The samples of a ``split`` (n,) by which clients choose, and their ``folds``.

    ``is_stored`` (n,) marks those that are in the clients' stores, and in no fold.
    """

    split: str
    folds: Folds
    is_stored: NDArray[np.bool_]

    @classmethod
    def of_split(cls, split: str, folds: Folds) -> ChoiceSamples:
        """Let clients choose by the samples of a split alone."""
        return cls(split, folds, np.zeros(len(folds.owner), bool))


def read_parts(run: Run, clients: NDArray[np.int64]) -> tuple[dict[str, Embedded], ChoiceSamples]:
    """Return the clients' embedded samples of each split, and those by which they choose.

    Raises UnsuitedError if ``cross_validate`` is given and a store of a client with few samples contains others.
    """
    assert run.embeddings is not None
    parts = {split: run.embeddings[split].take(clients) for split in run.predicted_splits}
    choice = ChoiceSamples.of_split("validation", Folds.divide(parts["validation"].offsets))
    if run.arrived is not None:
        parts["arrived"] = run.arrived.take(clients)
        choice = ChoiceSamples.of_split("arrived", _divide_arrived(parts["validation"], parts["arrived"]))
    is_few = np.diff(parts[choice.split].offsets) < (0 if run.inputs.choices else run.cfg.few)
    stored = _read_stored(run, clients, is_few)
    if len(stored.y):
        parts[_CHOICE], choice = _add_stored_samples(parts[choice.split], choice, stored)
    return parts, choice


def _divide_arrived(validation: Embedded, arrived: Embedded) -> Folds:
    """Return the folds of the samples of a stream that have arrived: those of the equal validation samples."""
    folds, known = Folds.divide(arrived.offsets), Folds.divide(validation.offsets)
    fold_of = {
        (owner, z.tobytes()): number
        for owner, number, z in zip(known.owner.tolist(), known.number.tolist(), validation.z, strict=True)
    }
    numbers = [fold_of.get((owner, z.tobytes()), -1) for owner, z in zip(folds.owner.tolist(), arrived.z, strict=True)]
    return replace(folds, number=np.asarray(numbers, dtype=np.int64))


def _read_stored(run: Run, clients: NDArray[np.int64], is_few: NDArray[np.bool_]) -> Embedded:
    """Return the samples in the stores of those of the clients (m,) that have few to choose by."""
    assert run.embeddings is not None
    train, rows = run.embeddings["train"], [np.zeros(0, np.int64)]
    for client, has_few in zip(clients.tolist(), is_few.tolist(), strict=True):
        rows.append(np.asarray(_find_stored_rows(run, client) if has_few else [], np.int64))
    all_rows, offsets = np.concatenate(rows), np.cumsum([len(own) for own in rows])
    return Embedded(train.z[all_rows], train.logits[all_rows], train.y[all_rows], offsets)


def _find_stored_rows(run: Run, client: int) -> list[int]:
    """Return the rows of a client's store among the training samples; none if it contains anything else.

    A prototype depends on several samples, and so may a vector in a compressed index, so that none can be left out.
    Raises UnsuitedError instead if ``cross_validate`` is given.
    """
    assert run.embeddings is not None
    assert run.stores is not None
    train, store = run.embeddings["train"], select_client(run.stores, client)
    row_of = {(train.z[row].tobytes(), train.y[row].item()): row for row in range(*train.offsets[client : client + 2])}
    if store.z is not None:
        known = [row_of.get((z.tobytes(), y)) for z, y in zip(store.z, store.y.tolist(), strict=True)]
        rows = [row for row in known if row is not None]
        if len(rows) == len(known):
            return rows
    if run.cfg.cross_validate is not None:
        raise UnsuitedError(
            "cross_validate leaves one sample out, which needs an exact store of samples",
            "pfl build-datastore EMBEDDINGS -o DIR, without --prototypes and with the index Flat",
        )
    return []


def _add_stored_samples(part: Embedded, choice: ChoiceSamples, stored: Embedded) -> tuple[Embedded, ChoiceSamples]:
    """Return the samples by which clients choose, ``part``, each client's followed by its ``stored`` ones."""
    owners = np.concatenate([choice.folds.owner, Folds.divide(stored.offsets).owner])
    order = np.argsort(owners, kind="stable")
    both = Embedded(
        np.concatenate([part.z, stored.z])[order],
        np.concatenate([part.logits, stored.logits])[order],
        np.concatenate([part.y, stored.y])[order],
        part.offsets + stored.offsets,
    )
    number = np.concatenate([choice.folds.number, np.full(len(stored.y), -1)])[order]
    folds = replace(choice.folds, owner=owners[order], number=number)
    return both, ChoiceSamples(_CHOICE, folds, order >= len(part.y))


def search(
    stores: Stores, clients: NDArray[np.int64], parts: Mapping[str, Embedded], k: int, choice: ChoiceSamples
) -> dict[str, Neighbours]:
    """Return the k nearest stored samples of each sample, of those to choose by without the sample itself."""
    found = {
        split: stores.search(clients, part.z, part.offsets, k) for split, part in parts.items() if split != _CHOICE
    }
    if _CHOICE in parts:
        part = parts[_CHOICE]
        more = stores.search(clients, part.z, part.offsets, k + 1)
        norms = np.square(part.z.astype(np.float64)).sum(axis=1)
        found[_CHOICE] = leave_out(more, np.where(choice.is_stored, part.y, _NOT_STORED[part.y.dtype.kind]), norms, k)
    return found
