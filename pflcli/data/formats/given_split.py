"""Splits that a user's file defines: train, validation or test for each sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError

SPLITS = ("train", "validation", "test")
_WORDS = {
    "train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2,
}  # fmt: skip
"""The accepted words, in lower case."""


def is_split(word: str) -> bool:
    """Return whether a word names a split."""
    return word.lower() in _WORDS


def normalize(word: str) -> str:
    """Return train, validation or test for a word that names a split."""
    return SPLITS[_WORDS[word.lower()]]


def parse_splits(
    words: NDArray[np.str_], owner: NDArray[np.str_] | None, place: Callable[[int], str], name: str
) -> NDArray[np.int8]:
    """Return the number of each sample's split, (n,), from ``words`` (n,): 0 train, 1 validation, 2 test.

    Raises InputError, with the ``place`` of the first unknown word, or with the file's ``name`` if there are no
    training or no test samples, or an ``owner`` (n,) has no training samples.
    """
    known = {word: _WORDS.get(word.lower()) for word in np.unique(words).tolist()}
    strange = np.isin(words, [word for word, number in known.items() if number is None])
    if strange.any():
        row = int(np.argmax(strange))
        raise InputError(
            f"{place(row)}: '{words[row]}' is not one of {', '.join(SPLITS)}", "write train, validation or test"
        )
    split = np.asarray([known[word] for word in words.tolist()], dtype=np.int8)
    for number in (0, 2):
        if not (split == number).any():
            raise InputError(f"{name} has no {SPLITS[number]} samples", "leave out --split-column to split at random")
    if owner is not None:
        untrained = sorted(set(owner.tolist()) - set(owner[split == 0].tolist()))
        if untrained:
            more = f" (and {len(untrained) - 1} more clients)" if len(untrained) > 1 else ""
            raise InputError(
                f"{name}: client '{untrained[0]}' has no training samples{more}",
                "give each client one, or leave such clients out",
            )
    return split
