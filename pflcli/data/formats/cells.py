"""Cells of tables: which words are numbers, which are missing values, and which option reads others.

``plain`` reads numbers with separators instead of pandas, which removes every separator: 3,5 would become 35.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import Dialect
from pflcli.data.formats import is_number

INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"))
"""Characters without a width, which copied text may contain; a table for ``str.translate`` that removes them."""
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-")
"""The spellings of a missing number or word. In labels and clients, only empty cells, NaN and ``--na`` are missing."""
SPACE = "space"
"""The value of ``--thousands`` for every kind of space, such as the no-break space."""
_SPACES = " \u00a0\u2007\u2009\u202f"
_MINUS = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-") | INVISIBLE)
"""A dash before a digit can only be a minus: hyphens, figure and en dash, minus sign, small and full-width hyphen."""
_THOUSANDS = ("", ",", ".", "'", "\u2019", SPACE, "_")
_DECORATED = re.compile(r"(\D*?)\s*([+-]?[.,]?\d(?:.*\d)?[.,]?)\s*(\D*)", re.DOTALL)
"""A prefix, all from the first to the last digit, and a suffix."""
_CURRENCIES = "EUR|USD|GBP|CHF|JPY|CNY|RMB|INR|NOK|SEK|DKK|PLN|CZK|BRL|Rs|kr|US|CA|AU|HK|NZ|R|C|A|S|Fr|ca|approx"
_MEASURE = re.compile(
    rf"(?:[^\w\s]{{0,3}}|(?:{_CURRENCIES})[.$]?)\s*[+-]?[.,]?\d[\d.,'\u2019_/\s-]*(?:e[+-]?\d+)?\s*\D{{0,16}}"
)
"""A number with symbols or a currency before it, and a unit after it; or several numbers, such as 120/80."""
_DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}([T ].*)?|(1[89]|2[01])\d\d[-/](0[1-9]|1[0-2])"
    r"|\d{1,2}([-/.])\d{1,2}\5(\d{4}|\d{2})([T ,].*)?"
    r"|\d{1,2}[- .]+[A-Za-z]{3,9}[- .]+\d{2,4}.*|[A-Za-z]{3,9} \d{1,2},? \d{4}.*"
)
_TIME = re.compile(r"\d{1,2}:\d{2}.*")
_DATE_HINT = "a date: make it a number, such as days since a day you choose"
_TIME_HINT = "a time: make it a number, such as minutes since midnight"
_MAX_DISTINCT = 100
"""Distinct cells by which an option is judged."""


def list_missing(dialect: Dialect) -> tuple[str, ...]:
    """Return the spellings of missing values: the usual ones and those of ``--na``, or only the latter with ''."""
    words = dialect.na or ()
    return words if "" in words else (*MISSING, *words)


def plain(word: str, dialect: Dialect) -> str | None:
    """Return a number in the spelling of Python; None for a word that is not a number in this ``dialect``."""
    word = word.translate(INVISIBLE).strip()
    for mark in dialect.strip or ():
        word = word.removeprefix(mark).removesuffix(mark).strip()
    word = word.translate(_MINUS)
    if not word.isascii():
        word = "".join(str(int(letter)) if letter.isdecimal() else letter for letter in word)
    decimal, thousands = dialect.decimal or ".", dialect.thousands
    if thousands:
        mark = f"[{_SPACES}]" if thousands == SPACE else re.escape(thousands)
        grouped = re.fullmatch(rf"([+-]?)[{_SPACES}]*(\d{{1,3}}(?:{mark}\d{{3}})+)((?:{re.escape(decimal)}.*)?)", word)
        word = grouped[1] + re.sub(mark, "", grouped[2]) + grouped[3] if grouped else word
    if decimal != "." and "." in word:
        # A point is a decimal point too, unless it may separate thousands.
        word = "" if decimal in word or re.fullmatch(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", word) else word
    elif decimal != ".":
        word = word.replace(decimal, ".", 1)
    return word if is_number(word) else None


def parse_numbers(column: Any, dialect: Dialect) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers (n,) of a pandas Series, NaN if missing, and a mask (n,) of cells that are not numbers.

    True and False are 1 and 0 in a column that has no other words.
    """
    if column.dtype.kind in "mMc":
        return np.full(len(column), np.nan), column.notna().to_numpy(np.bool_)
    if column.dtype.kind in "biuf":
        numbers, is_strange = column.to_numpy(np.float64), np.zeros(len(column), dtype=np.bool_)
    else:
        numbers, is_strange = _parse_words(column, dialect)
    missing = [float(word) for word in dialect.na or () if is_number(word)]
    return np.where(np.isin(numbers, missing), np.nan, numbers), is_strange


def find_stripped(column: Any, strip: Sequence[str]) -> tuple[str, ...]:
    """Return the marks of ``strip`` around the numbers of a pandas Series, and '' if some have none."""
    cells = [str(cell).strip() for cell in column.dropna().unique()]
    marks = [
        next((mark for mark in strip if mark and (cell.startswith(mark) or cell.endswith(mark))), "") for cell in cells
    ]
    return tuple(dict.fromkeys(mark for mark, cell in zip(marks, cells, strict=True) if cell))


def _parse_words(column: Any, dialect: Dialect) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    import pandas as pd

    codes, distinct = pd.factorize(column.astype(object).where(column.notna(), "").map(str), use_na_sentinel=False)
    missing = {*list_missing(dialect)}
    words = ["" if word.strip() in missing else word for word in distinct]
    numbers = [plain(word, dialect) if word else "nan" for word in words]
    truths = {"true": "1", "false": "0"}
    if all(number is not None or word.strip().lower() in truths for word, number in zip(words, numbers, strict=True)):
        numbers = [number or truths[word.strip().lower()] for word, number in zip(words, numbers, strict=True)]
    values = np.asarray([float(number or "nan") for number in numbers], dtype=np.float64)
    is_strange = np.asarray([number is None for number in numbers], dtype=np.bool_)
    return values[codes], is_strange[codes]


@dataclass(frozen=True)
class Reading:
    """An option that reads cells which are not numbers, as typed, and one such cell with its number."""

    option: str
    cell: str
    number: str
    read: int
    """the number of distinct cells that it reads"""


def find_readings(words: Sequence[str], dialect: Dialect) -> list[Reading]:
    """Return the options by which most of the distinct ``words`` are numbers; several if cells are ambiguous.

    A negative number in brackets or with a minus at its end has none: to strip the mark would lose the sign.
    """
    distinct = list(dict.fromkeys(words))[:_MAX_DISTINCT]
    strange = [word for word in distinct if plain(word, dialect) is None]
    marks = _list_marks(strange)
    found: list[tuple[int, int, Reading]] = []
    decimals = [dialect.decimal or ".", *({".", ","} - {dialect.decimal or "."})]
    for strip, mark, decimal in product(marks, _THOUSANDS, decimals):
        thousands = mark or (None if dialect.thousands == decimal else dialect.thousands)
        if thousands == decimal:
            continue
        other = replace(
            dialect,
            strip=tuple(dict.fromkeys((*(dialect.strip or ()), *strip))) or None,
            thousands=thousands,
            decimal=dialect.decimal if decimal == (dialect.decimal or ".") else decimal,
        )
        numbers = [plain(word, other) for word in distinct]
        example = next(
            ((word, number) for word, number in zip(distinct, numbers, strict=True) if word in strange and number), None
        )
        changes = _list_changes(dialect, other)
        if example and changes:
            read = sum(number is not None for number in numbers)
            found.append((-read, len(changes), Reading(" ".join(changes), example[0].strip(), example[1], read)))
    if not found:
        return []
    best = min(each[:2] for each in found)
    return list({reading.option: reading for *rank, reading in found if tuple(rank) == best}.values())[:3]


def _list_marks(strange: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets of marks around numbers that may be stripped: none, the most frequent prefix, suffix, or both."""
    prefixes: Counter[str] = Counter()
    suffixes: Counter[str] = Counter()
    for word in strange:
        match = _DECORATED.fullmatch(word.strip().translate(_MINUS))
        if match is None or (match[1], match[3]) == ("(", ")") or match[3] == "-":
            continue
        prefixes[match[1].strip()] += 1
        suffixes[match[3].strip()] += 1
    prefix, suffix = (
        # A single cell with letters is rather a slip.
        next((mark for mark, count in counts.most_common() if mark and (count > 1 or not mark.isalpha())), "")
        for counts in (prefixes, suffixes)
    )
    return [(), *{tuple(filter(None, marks)): None for marks in ((prefix,), (suffix,), (prefix, suffix)) if any(marks)}]


def _list_changes(old: Dialect, new: Dialect) -> list[str]:
    """Return the options by which two dialects differ, as typed."""
    options = {
        "--decimal": new.decimal or "." if new.decimal != old.decimal else "",
        "--thousands": new.thousands or "none" if new.thousands != old.thousands else "",
        "--strip": ",".join(new.strip or ()) if new.strip != old.strip else "",
    }
    return [f"{option} {quote(value)}" for option, value in options.items() if value]


def quote(value: str) -> str:
    """Return a value as it is typed in a shell."""
    return f'"{value}"' if "'" in value and not re.search(r'["$`\\!]', value) else shlex.quote(value)


def is_date(word: str) -> bool:
    """Return whether a word is written as a date or a time of day."""
    return bool(_DATE.fullmatch(word.strip()) or _TIME.fullmatch(word.strip()))


def is_measure(word: str) -> bool:
    """Return whether a word is a number with marks around it, or several numbers; ids begin with a letter."""
    return not is_date(word) and _MEASURE.fullmatch(word.strip().translate(_MINUS)) is not None


def is_ledger_negative(word: str) -> bool:
    """Return whether a word is a negative number as in a ledger, (12) or 12-."""
    return re.fullmatch(r"\([\d.,' ]*\d\)|\d[\d.,' ]*-", word.strip().translate(_MINUS)) is not None


def explain(word: str) -> str:
    """Return a hint for a cell that no option reads as a number; empty if there is none."""
    word = word.strip()
    if _DATE.fullmatch(word):
        return _DATE_HINT
    if _TIME.fullmatch(word):
        return _TIME_HINT
    if is_ledger_negative(word):
        return "write a negative number as -12"
    if re.fullmatch(r"[\d.,]+\s*[/-]\s*[\d.,]+", word):
        return "make it two columns of numbers"
    return ""
