"""Columns of words, each of which becomes a feature of 0 and 1."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import Column, Like, is_number, ordered, spelled, text
from pflcli.data.formats.table import HINTS, MISSING, Table, listed_columns, place_of
from pflcli.errors import InputError
from pflcli.foreign import NAME_LENGTH

_MANY = 200
"""More words than this in a column name things, and are refused."""

_FEW = 20
"""Up to so many words in a column become a feature each without being asked for."""


def words_of(column: Any, where: str) -> NDArray[np.str_]:
    """Return what stands in a column of words (n,), empty where it lacks a value."""
    words = text(column.to_numpy(object), where)
    return spelled(np.where(np.isin(words, MISSING), "", words))


def few_words(column: Any, where: str) -> NDArray[np.str_] | None:
    """Return the words of a column that holds few different ones, each of them often; None for another column."""
    if column.dtype.kind in "biufmMc":
        return None
    if not all(isinstance(cell, str) and len(cell) <= NAME_LENGTH for cell in column.dropna()):
        return None
    words = words_of(column, where)
    different = {word for word in np.unique(words).tolist() if word}
    strange = any(is_number(word) or any(re.fullmatch(hint, word) for hint in HINTS) for word in different)
    return None if strange or not 2 <= len(different) <= min(_FEW, len(words) // 5) else words


def known_words(table: Table, name: str, words: NDArray[np.str_]) -> tuple[str, ...]:
    """Return the different words of a column (n,), ordered; raises InputError if they are too many, or none."""
    different = ordered(word for word in words.tolist() if word)
    if not 1 <= len(different) <= _MANY:
        raise InputError(
            f"{table.name}: column '{name}' holds {len(different)} different words, where 1 to {_MANY} are meant",
            "leave it out of --categorical",
        )
    return tuple(different)


def one_hot(table: Table, at: int, words: NDArray[np.str_], column: Column, like: Like | None) -> NDArray[np.float64]:
    """Return a feature (n, words) for each word, 1 where it stands, NaN where nothing does."""
    strange = (words != "") & ~np.isin(words, column.words)
    if strange.any():
        row = int(np.argmax(strange))
        raise InputError(
            f"{place_of(table, row, column.name)}: '{words[row]}' is not among the words of "
            f"{like.name if like else 'that column'}: {listed_columns(column.words)}",
            "give it one of these; a new word needs new training",
        )
    hot: NDArray[np.float64] = (words[:, None] == np.asarray(column.words)).astype(np.float64)
    hot[words == ""] = np.nan
    return hot
