"""Words that are the same but for case or spaces, such as ``Ill`` and ``ill ``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError

INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"))
"""Characters without a width, which copied text may contain; a table for ``str.translate`` that removes them."""


def fold_key(word: str) -> str:
    """Return what words have in common that differ only by case, spaces or invisible characters."""
    return " ".join(word.translate(INVISIBLE).casefold().split())


def fold(words: NDArray[np.str_], known: Sequence[str] = ()) -> NDArray[np.str_]:
    """Return words (n,) in one spelling each: that of the ``known`` words, else the most frequent one."""
    distinct, counts = np.unique(words, return_counts=True)
    spelling: dict[str, str] = {}
    for at in np.argsort(-counts, kind="stable").tolist():
        word = str(distinct[at])
        spelling.setdefault(fold_key(word), word)
    spelling |= {fold_key(word): word for word in known}
    folded = {str(word): spelling[fold_key(str(word))] for word in distinct}
    return np.asarray([folded[word] for word in words.tolist()], dtype=np.str_)


def require_distinct(words: NDArray[np.str_], where: str, noun: str) -> None:
    """Raise InputError if two words (n,) differ only by case or spaces; ``where`` is the column or array."""
    by_key: dict[str, list[str]] = {}
    for word in np.unique(words).tolist():
        by_key.setdefault(fold_key(word), []).append(word)
    same = next((each for each in by_key.values() if len(each) > 1), None)
    if same is not None:
        raise InputError(
            f"{where}: {' and '.join(map(repr, same[:4]))} differ only by case or spaces",
            f"if they are one {noun}: --fold-case",
            "if not: --no-fold-case",
        )
