"""Phrases that several messages use: numbers with nouns, shortened lists, durations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1: ``3 clients``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def as_typed(value: Any) -> str:
    """Return the value of an option as a user types it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def listed(words: Sequence[str], most: int = 8, separator: str = ", ") -> str:
    """Join at most ``most`` of the words, followed by their number if some are omitted."""
    text = separator.join(words[:most])
    return text + (f"{separator}... ({len(words)} in all)" if len(words) > most else "")


def duration(seconds: float) -> str:
    """Return seconds as text: ``8 s``, ``2.5 min``, ``50 min``, ``3.5 h``, ``4.1 days``."""
    for unit, length, most in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 172800)):
        if seconds < most:
            number = max(seconds, 1) / length
            return f"{number:.{int(length > 1 and number < 10)}f} {unit}"
    return f"{seconds / 86400:.1f} days"


class PathWord(str):
    """A word of a command line that names a file or folder, after a ``prefix`` such as ``pfllib:``, if any."""

    prefix: str

    def __new__(cls, path: object, prefix: str = "") -> PathWord:
        """Return the word for a path."""
        word = super().__new__(cls, f"{prefix}{path}")
        word.prefix = prefix
        return word
