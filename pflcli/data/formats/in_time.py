"""The order in which samples were recorded: numbers or dates of a column."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import is_number
from pflcli.errors import InputError


def sorted_rows(words: NDArray[np.str_], place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return rows (n,) in the order of ``words`` (n,), numbers or dates (ISO 8601); equal ones keep their order.

    Dates without a time zone are taken as UTC, and all of them compared to the microsecond. Raises InputError that
    names the ``place`` of the first word that is neither, or not what the others are.
    """
    different = np.unique(words).tolist()
    are_numbers = all(is_number(word) for word in different)
    time_of: dict[str, float | datetime] = {}
    for word in different:
        time = _number(word) if are_numbers else _date(word)
        if time is None:
            problem = f"'{word}' is neither a number nor a date such as 2024-03-31 or 2024-03-31 12:30"
            raise InputError(f"{place(int(np.argmax(words == word)))}: {problem}", "write all in one of these ways")
        time_of[word] = time
    rank = {time: number for number, time in enumerate(sorted(set(time_of.values())))}
    return np.argsort([rank[time_of[word]] for word in words.tolist()], kind="stable").astype(np.int64)


def _number(word: str) -> float | None:
    """Return an integer as it is, since a time in nanoseconds has more digits than a float; None for infinity."""
    if word.lstrip("+-").isdigit():
        return int(word)
    return None if word.endswith("inf") else float(word)


def _date(word: str) -> datetime | None:
    try:
        date = datetime.fromisoformat(word)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
