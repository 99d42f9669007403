"""Columns of words, which become one 0/1 feature per word."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import Column, Like, is_number, normalize_numbers, ordered, text
from pflcli.data.formats.table import HINTS, MISSING, Table, listed_columns, place_of
from pflcli.errors import InputError
from pflcli.foreign import NAME_LENGTH

_MANY = 200
"""Maximum number of distinct words in a categorical column."""

_FEW = 20
"""Maximum number of distinct words in a column that becomes categorical by itself."""


def words_of(column: Any, where: str) -> NDArray[np.str_]:
    """Return the words (n,) of a column, empty if missing."""
    words = text(column.to_numpy(object), where)
    return normalize_numbers(np.where(np.isin(words, MISSING), "", words))


def few_words(column: Any, where: str) -> NDArray[np.str_] | None:
    """Return the words of a column with few distinct words, each of them frequent; None for other columns."""
    if column.dtype.kind in "biufmMc":
        return None
    if not all(isinstance(cell, str) and len(cell) <= NAME_LENGTH for cell in column.dropna()):
        return None
    words = words_of(column, where)
    different = {word for word in np.unique(words).tolist() if word}
    strange = any(is_number(word) or any(re.fullmatch(hint, word) for hint in HINTS) for word in different)
    return None if strange or not 2 <= len(different) <= min(_FEW, len(words) // 5) else words


def known_words(table: Table, name: str, words: NDArray[np.str_]) -> tuple[str, ...]:
    """Return the distinct words of a column (n,) in order; raises InputError if there are none or too many."""
    different = ordered(word for word in words.tolist() if word)
    if not 1 <= len(different) <= _MANY:
        raise InputError(
            f"{table.name}: column '{name}' has {len(different)} distinct words; a categorical column has 1 to {_MANY}",
            "leave it out of --categorical",
        )
    return tuple(different)


def one_hot(table: Table, at: int, words: NDArray[np.str_], column: Column, like: Like | None) -> NDArray[np.float64]:
    """Return one 0/1 feature per word, (n, words); NaN if the word is missing."""
    strange = (words != "") & ~np.isin(words, column.words)
    if strange.any():
        row = int(np.argmax(strange))
        raise InputError(
            f"{place_of(table, row, column.name)}: '{words[row]}' is not among the words of "
            f"{like.name if like else 'that column'}: {listed_columns(column.words)}",
            "use one of these; a new word requires new training",
        )
    hot: NDArray[np.float64] = (words[:, None] == np.asarray(column.words)).astype(np.float64)
    hot[words == ""] = np.nan
    return hot
