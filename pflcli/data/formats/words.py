"""Categorical columns of a table: words, and one 0/1 feature for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import NO_DIALECT, Column, Dialect
from pflcli.core.errors import InputError
from pflcli.core.foreign import NAME_LENGTH
from pflcli.data.formats import Like, sort_words, spellings, to_text
from pflcli.data.formats.cells import find_readings, is_date, is_ledger_negative, is_measure, list_missing, plain
from pflcli.data.formats.columns import Table, list_columns, locate_cell

_MAX_WORDS = 200
"""Maximum number of distinct words in a categorical column."""
MAX_DETECTED_WORDS = 20
"""Maximum number of distinct words in a column that becomes categorical by itself."""
_MIN_ROWS_PER_WORD = 5
"""Minimum number of rows per distinct word in a column that becomes categorical by itself."""


def to_words(column: Any, where: str, dialect: Dialect) -> NDArray[np.str_]:
    """Return the words (n,) of a column, empty if missing."""
    words = to_text(column.to_numpy(object), where)
    return np.where(np.isin(words, list_missing(dialect)), "", words)


def has_words(column: Any, where: str, dialect: Dialect) -> bool:
    """Return whether a column has few distinct words, each of them frequent."""
    if column.dtype.kind in "biufmMc":
        return False
    if not all(isinstance(cell, str) and len(cell) <= NAME_LENGTH for cell in column.dropna()):
        return False
    words = to_words(column, where, dialect)
    different = [word for word in np.unique(words).tolist() if word]
    most = min(MAX_DETECTED_WORDS, len(words) // _MIN_ROWS_PER_WORD)
    if len(different) > _MAX_WORDS or not 2 <= len({spellings.find_key(word, dialect) for word in different}) <= most:
        return False
    if any(plain(word, dialect) or is_date(word) for word in different):
        return False
    if {word.lower() for word in different} <= {"true", "false"} or any(map(is_ledger_negative, different)):
        return False
    readings = find_readings(different, dialect) if any(map(is_measure, different)) else []
    return not readings or 2 * readings[0].read <= len(different)


def list_words(table: Table, name: str, words: NDArray[np.str_]) -> tuple[str, ...]:
    """Return the distinct words of a column (n,) in order; raises InputError if there are none or too many."""
    different = sort_words(word for word in words.tolist() if word)
    if not 1 <= len(different) <= _MAX_WORDS:
        raise InputError(
            f"{table.name}: column '{name}' has {len(different)} distinct words; "
            f"a categorical column has 1 to {_MAX_WORDS}",
            "leave it out of --categorical",
        )
    return tuple(different)


def encode_words(table: Table, words: NDArray[np.str_], column: Column, like: Like | None) -> NDArray[np.float64]:
    """Return one 0/1 feature per word of the column, (n, words); NaN if the word is missing."""
    is_strange = (words != "") & ~np.isin(words, column.words)
    if is_strange.any():
        row = int(np.argmax(is_strange))
        raise InputError(
            f"{locate_cell(table, row, column.name)}: '{words[row]}' is not among the words of "
            f"{like.name if like else 'that column'}: {list_columns(column.words)}",
            "use one of these; a new word requires new training",
            *spellings.suggest(str(words[row]), column.words, NO_DIALECT),
            *(["pfl predict --unknown-words missing treats it as a missing value"] if like else []),
        )
    hot: NDArray[np.float64] = (words[:, None] == np.asarray(column.words)).astype(np.float64)
    hot[words == ""] = np.nan
    return hot
