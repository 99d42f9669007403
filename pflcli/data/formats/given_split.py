"""What a user's file says of each sample: whether it is for training, validation or test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError

SPLITS = ("train", "validation", "test")
_WORDS = {
    "train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2,
}  # fmt: skip
"""Words that users write, in any case."""


def numbered(
    words: NDArray[np.str_], owner: NDArray[np.str_] | None, place: Callable[[int], str], name: str
) -> NDArray[np.int8]:
    """Return for each sample (n,) 0 for training, 1 for validation and 2 for test, as ``words`` (n,) say.

    Raises InputError that names the ``place`` of the first other word, or the file by its ``name`` where there is
    nothing to train on or to test on, for all samples or for those of an ``owner`` (n,).
    """
    known = {word: _WORDS.get(word.lower()) for word in np.unique(words).tolist()}
    strange = np.isin(words, [word for word, number in known.items() if number is None])
    if strange.any():
        row = int(np.argmax(strange))
        raise InputError(
            f"{place(row)}: '{words[row]}' is none of {', '.join(SPLITS)}", "write train, validation (or val) or test"
        )
    split = np.asarray([known[word] for word in words.tolist()], dtype=np.int8)
    for number in (0, 2):
        if not (split == number).any():
            raise InputError(
                f"{name}: no sample is for {SPLITS[number]}", "leave out --split-column to split at random"
            )
    if owner is not None:
        untrained = sorted(set(owner.tolist()) - set(owner[split == 0].tolist()))
        if untrained:
            more = f", nor have {len(untrained) - 1} more" if len(untrained) > 1 else ""
            raise InputError(
                f"{name}: client '{untrained[0]}' has no sample for training{more}",
                "give each client one, or leave such clients out",
            )
    return split
