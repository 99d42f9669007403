"""Splits that a user's file defines: train, validation or test for each sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.client_blocks import SPLITS
from pflcli.data.formats import RawSamples
from pflcli.errors import InputError

_WORDS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip


def find_split(word: str) -> str | None:
    """Return train, validation or test for a word that names a split in any case, such as Dev; None for others."""
    return _WORDS.get(word.lower())


def parse_splits(raw: RawSamples, rows: NDArray[np.int64], name: str) -> NDArray[np.int8]:
    """Return the number of the split of each of ``rows``, (n,): 0 train, 1 validation, 2 test.

    Raises InputError, with the place of the first unknown word, or with the file's ``name`` if there are no training or
    no test samples, or a client has no training samples.
    """
    words = raw.metadata["split"][rows]
    split_of = {word: find_split(word) for word in np.unique(words).tolist()}
    is_unknown = np.isin(words, [word for word, split in split_of.items() if split is None])
    if is_unknown.any():
        at = int(np.argmax(is_unknown))
        raise InputError(
            f"{raw.place(int(rows[at]), 'split', ())}: '{words[at]}' is not one of {', '.join(SPLITS)}",
            "write train, validation or test",
        )
    splits = np.asarray([SPLITS.index(str(split_of[word])) for word in words.tolist()], dtype=np.int8)
    for split in ("train", "test"):
        if not (splits == SPLITS.index(split)).any():
            raise InputError(f"{name} has no {split} samples", "leave out --split-column to split at random")
    if raw.owner is not None:
        owner = raw.owner[rows]
        untrained = sorted(set(owner.tolist()) - set(owner[splits == 0].tolist()))
        if untrained:
            more = f" (and {len(untrained) - 1} more clients)" if len(untrained) > 1 else ""
            raise InputError(
                f"{name}: client '{untrained[0]}' has no training samples{more}",
                "give each client one, or leave such clients out",
            )
    return splits
