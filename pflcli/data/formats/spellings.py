"""Names of classes, clients, groups and words, in columns, arrays and folders: ``read`` gives each one spelling.

What only the user knows is an error that asks: whether spellings such as ``Ill`` and ``ill``, or 01 and 1, are one
name, and whether ``unknown`` or -9 means that the name is missing.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import Dialect
from pflcli.core.errors import InputError
from pflcli.core.wording import counted, listed
from pflcli.data.formats.cells import INVISIBLE, plain

_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"), "-")
_APOSTROPHES = dict.fromkeys(map(ord, "`\u00b4\u02b9\u02bc\u2018\u2019\u201b\u2032\uff07"), "'")
_STEPS: dict[str, Callable[[str], str]] = {
    "invisible characters": lambda word: word.translate(INVISIBLE),
    "apostrophes": lambda word: word.translate(_APOSTROPHES),
    "dashes": lambda word: word.translate(_DASHES),
    "Unicode form": lambda word: unicodedata.normalize("NFKC", word),
    "case": str.casefold,
    "spaces": lambda word: re.sub(r"[ \t]+", "", word),
}
"""What is removed from words before they are compared, by the name of the difference."""
_ABSENT = (
    "na", "n/a", "n.a.", "nan", "null", "none", "unknown", "missing", "?", "-", "--", ".", "#n/a", "not available",
)  # fmt: skip
"""Names, in lower case, that may stand for a missing one."""
_MARKS = {Decimal(sign * (10**digits - 1)) for digits in range(1, 8) for sign in (-1, 1)}
"""Numbers that often stand for a missing name: 9, -9, 99 and so on."""


def read(
    words: NDArray[np.str_],
    noun: str,
    place: Callable[[int], str],
    dialect: Dialect,
    known: Sequence[str] = (),
    *,
    asks: bool = True,
    new_names: Mapping[str, str] | None = None,
    is_declared: bool = False,
) -> NDArray[np.str_]:
    """Return the names (n,) that ``words`` (n,) spell, empty if missing; ``place`` returns the place of a row.

    7.0 is 7. With ``--fold-case``, spellings of one name become that of the ``known`` names, else the most frequent
    one. Otherwise, with ``asks``, they raise InputError unless ``--no-fold-case`` is given, or ``new_names`` gives all
    of them the same name. With ``asks``, words and numbers that may mark a missing name raise it too, except among
    words of features, unless ``--na ''`` is given or the names are ``is_declared``.
    """
    dialect = replace(dialect, strip=None)  # marks around numbers are a part of names
    distinct, at, counts = np.unique(words, return_inverse=True, return_counts=True)
    marks = {shorten(mark, dialect) for mark in dialect.na or ()}
    name_of = {word: "" if (name := shorten(word, dialect)) in marks else name for word in distinct.tolist()}
    known = [shorten(word, dialect) for word in known]
    count_of = Counter(dict.fromkeys(known, 0))
    for name, count in zip(name_of.values(), counts.tolist(), strict=True):
        count_of[name] += count
    del count_of[""]
    by_key: dict[str | Decimal, list[str]] = {}
    for name in sorted(count_of, key=lambda name: (name not in known, -count_of[name])):
        by_key.setdefault(find_key(name, dialect), []).append(name)

    def locate(*names: str) -> str:
        return place(int(np.argmax(np.isin(words, [word for word in name_of if name_of[word] in names]))))

    if asks and dialect.fold_case is None:
        for same in by_key.values():
            found = [name for name in same if count_of[name]]
            if found and len({(new_names or {}).get(name, name) for name in same}) > 1:
                raise InputError(
                    f"{locate(found[-1])}: {_list(same, count_of)} {_describe_difference(same)}",
                    f"if they are one {noun}: --fold-case",
                    "if not: --no-fold-case",
                )
    absent = _find_absent([name for name in count_of if count_of[name]], noun, dialect)
    if absent and asks and noun != "word" and not is_declared and "" not in (dialect.na or ()):
        typed, kept = (shlex.quote(",".join([*(dialect.na or ()), *more])) for more in (absent, [""]))
        raise InputError(
            f"{locate(*absent)}: {_list(absent, count_of)} may mean that the {noun} is missing",
            f"if so: --na {typed} --missing drop",
            "if each is a class: --task classes" if noun == "class" else f"if each is a {noun}: --na {kept}",
        )
    if dialect.fold_case:
        folded = {name: same[0] for same in by_key.values() for name in same} | {"": ""}
        name_of = {word: folded[name] for word, name in name_of.items()}
    return np.asarray(list(name_of.values()), dtype=np.str_)[at]


def shorten(word: str, dialect: Dialect) -> str:
    """Return a number as Python spells it, without a point if it is whole, as 7 for 7.0; other words as they are."""
    number = plain(word, dialect)
    if number is None or "." not in number:
        return word if number is None else number
    return str(int(Decimal(number))) if float(number).is_integer() else number


def find_key(word: str, dialect: Dialect) -> str | Decimal:
    """Return what all spellings of a name have in common: the number, or the word without case, spaces and so on."""
    try:
        number = plain(word, dialect)
        if number is not None:
            return Decimal(number)
    except InvalidOperation:  # its exponent has too many digits
        pass
    return _fold(word)


def _fold(word: str, without: str = "") -> str:
    for difference, step in _STEPS.items():
        word = word if difference == without else step(word)
    return word


def suggest(word: str, known: Sequence[str], dialect: Dialect) -> list[str]:
    """Return the option that reads a word as one of the ``known`` names, if it is a spelling of one."""
    same = next((name for name in known if find_key(name, dialect) == find_key(word, dialect)), None)
    return [] if same is None else [f"--fold-case reads it as '{same}'"]


def _find_absent(names: Sequence[str], noun: str, dialect: Dialect) -> list[str]:
    """Return the names that may mark a missing one: words such as ``unknown``, or a number far from all others.

    The classes ``none`` and, beside ``+``, ``-`` are a finding, and 9 is an ordinary number of a client or group.
    """
    findings = ("none", *("-" * ("+" in names))) if noun == "class" else ()
    absent = [name for name in names if name.lower() in _ABSENT and name not in findings]
    number_of = {name: number for name in names if isinstance(number := find_key(name, dialect), Decimal)}
    values = sorted({*number_of.values()})
    if len(number_of) + len(absent) == len(names) and len(values) > 2:
        for mark, rest in ((values[0], values[1:]), (values[-1], values[:-1])):
            is_mark = mark in _MARKS and (mark != 9 or noun == "class")
            if is_mark and min(abs(mark - rest[0]), abs(mark - rest[-1])) > rest[-1] - rest[0]:
                absent += [name for name, number in number_of.items() if number == mark]
    return absent if len(absent) < len(names) else []


def _list(names: Sequence[str], count_of: Mapping[str, int]) -> str:
    return listed([f"'{name}' ({counted(count_of[name], 'sample')})" for name in names], 6)


def _describe_difference(names: Sequence[str]) -> str:
    """Return how spellings of one name differ, for a message."""
    if len({*map(_fold, names)}) > 1:
        return "are the same number"
    found = [difference for difference in _STEPS if len({_fold(name, difference) for name in names}) > 1]
    return f"differ only by {' and '.join(found) or 'spelling'}"
