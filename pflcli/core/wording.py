"""Phrases that several messages use: numbers with nouns, shortened lists, durations."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, ContextDecorator
from pathlib import Path
from typing import Any

from pflcli.core.errors import PflError


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1: ``3 clients``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def as_typed(value: Any) -> str:
    """Return the value of an option as a user types it, such as ``none``, ``true`` or ``0.1,0.3``."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(as_typed, value))
    return str(value)


_VALUE = r"[A-Z]+\b|(?=\S*[\d_:=])[\w.:,/=-]*\w|(?!and\b|or\b)[a-z-]+(?=$|[,;.)`]| --| (?:or|and|has|is|may) )"
_OPTION = re.compile(rf"pfl [a-z-]+[^,;:()]*|(?<![\w-])--(?P<name>[a-z][a-z-]*)(?: (?P<value>{_VALUE}))?")
"""A command with its options, or an option that stands alone, with its value if one follows."""


def in_python(text: str) -> str:
    """Return a message whose options are arguments: ``rounds=240`` for ``--rounds 240``; commands stay as they are."""

    def spell(option: re.Match[str]) -> str:
        name, value = option["name"], option["value"]
        if name is None or value is None:
            return option[0] if name is None else name.replace("-", "_")
        if name == "seeds":
            return f"simulate(..., seed=seed) for seed in ({value})"
        key, _, typed = value.partition("=") if name == "set" else (name.replace("-", "_"), "", value)
        typed = typed if re.fullmatch(r"[A-Z]+|-?\d[\d.]*(e-?\d+)?", typed) else f'"{typed}"'
        return f'options={{"{key}": {typed}}}' if name == "set" else f"{key}={typed}"

    return _OPTION.sub(spell, text)


class WordedInPython(AbstractContextManager[None], ContextDecorator):
    """Decorates a function that only Python calls: its errors name arguments, and not options of the command line."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Word the error anew, which is raised."""
        if isinstance(error, PflError):
            error.message, error.fix = in_python(error.message), tuple(map(in_python, error.fix))


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
    """A word of a command line that is a path, or contains some: ``fedavg,./mine.py@long``."""

    parts: tuple[str | Path, ...] = ()
    """the paths in the word and the text between them; empty if the whole word is a path"""

    @classmethod
    def of_parts(cls, *parts: str | Path) -> PathWord:
        """Return the word that consists of ``parts``."""
        word = cls("".join(map(str, parts)))
        word.parts = parts
        return word

    def relative_to(self, folder: Path) -> str:
        """Return the word with its paths relative to ``folder``; each begins with ./ or ../, or is . or .. itself."""
        return "".join(
            _relative(part, folder) if isinstance(part, Path) else part for part in self.parts or (Path(self),)
        )


def _relative(path: Path, folder: Path) -> str:
    relative = os.path.relpath(path.absolute(), folder)
    return relative if relative.partition(os.sep)[0] in (".", "..") else f"./{relative}"


def is_relative_path(word: str, before: str) -> bool:
    """Return whether a word of a recorded command line is a path, and no value such as .5, or . after --thousands."""
    return word.startswith(("./", "../")) or word == ".." or (word == "." and not before.startswith("--"))
