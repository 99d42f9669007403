"""Users' own files, one module a form, each giving ``Raw``; ``cleaning`` checks them all alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError, closest
from pflcli.foreign import require_short

ABSENT = "none"
"""What a user types for a column that there is none of, such as the client's if samples have no clients yet."""


@dataclass(frozen=True)
class Column:
    """A column of a table: a number or, with ``words``, one of these; with ``gaps``, a feature says where it lacks."""

    name: str
    words: tuple[str, ...] = ()
    gaps: bool = False

    @property
    def features(self) -> list[str]:
        """The names of the features that it becomes, without the one for gaps."""
        return [f"{self.name}={word}" for word in self.words] or [self.name]


@dataclass(frozen=True)
class Like:
    """What new data are to agree with: the ``classes`` and ``columns`` of ``name``, each empty if it has none."""

    name: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Roles:
    """Which column of a table, or which array, says what of each sample; None where the user names none.

    ``client`` and ``label`` say whose it is and its class, ``split`` what it is for, ``group`` with which others it
    belongs together, such as one patient's, and ``order`` when it was recorded.
    """

    client: str | None = None
    label: str | None = None
    split: str | None = None
    group: str | None = None
    order: str | None = None

    @property
    def beside(self) -> dict[str, str]:
        """The names for roles beside client and label, without those that have none."""
        names = {"split": self.split, "group": self.group, "order": self.order}
        return {role: name for role, name in names.items() if name not in (None, ABSENT)}


def option(role: str) -> str:
    """Return the option that names the column or array for a role."""
    return {"split": "--split-column"}.get(role, f"--{role}")


@dataclass(frozen=True)
class Raw:
    """Samples as they stand in a file, before anything but their form is checked.

    ``x`` (n, ...) numbers, NaN where missing; ``label`` (n,) and ``owner`` (n,) text, empty where missing. ``place``
    says where a value stands: its sample, "features" or a role, and the index within the sample.
    ``columns`` are those of a table. One with words takes a feature for each of them, 1 where it stands, NaN in all of
    them where nothing does. ``classes`` are names for the labels, if the file has them. ``remarks`` are for the user.
    ``beside`` has what stands in the columns or arrays of further roles (``Roles.beside``), text (n,) for each.
    """

    x: NDArray[Any]
    label: NDArray[np.str_]
    owner: NDArray[np.str_] | None
    place: Callable[[int, str, Sequence[int]], str]
    columns: tuple[Column, ...] = ()
    classes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    beside: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)

    def require_same_length(self, name: str) -> None:
        """Raise InputError, which calls the file ``name``, unless there are as many features as labels, and some."""
        lengths = {"features": len(self.x), "labels": len(self.label)}
        lengths |= {} if self.owner is None else {"clients": len(self.owner)}
        lengths |= {f"values of the {role}": len(words) for role, words in self.beside.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{name}: " + ", ".join(f"{count} {role}" for role, count in lengths.items()))
        if not len(self.label):
            raise InputError(f"{name} holds no samples")


def text(values: NDArray[Any], where: str) -> NDArray[np.str_]:
    """Return labels or names (n,) as text: whole floats as integers, NaN and None as nothing. Errors say ``where``.

    Raises TypeError for what is neither text nor a number, InputError for a name that is too long.
    """
    if values.dtype.kind in "biu":
        return values.astype(np.str_)
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
    elif values.dtype.kind not in "SUTO":
        raise TypeError(f"{values.dtype} is neither text nor a number")
    words = [_word(value) for value in values.tolist()]
    require_short(where, max(words, key=len, default=""))
    return np.asarray(words, dtype=np.str_)


def is_storable(name: str) -> bool:
    """Return whether a name can be written to every file: it has no NUL and no lone half of a surrogate pair."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name)


def spelled(words: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return words (n,), whole numbers without a fraction if all of them are numbers: 1.0 and 01 are 1."""
    values = [word for word in np.unique(words).tolist() if word]
    if not values or not all(_NUMBER.fullmatch(word) and float(word).is_integer() for word in values):
        return words
    plain = {word: str(int(word) if word.lstrip("+-").isdigit() else int(float(word))) for word in values} | {"": ""}
    return np.asarray([plain[word] for word in words.tolist()], dtype=np.str_)


def ordered(words: Iterable[str]) -> list[str]:
    """Return different words in order: numbers by value, others by letter."""
    unique = sorted(set(words))
    return sorted(unique, key=float) if all(_NUMBER.fullmatch(word) for word in unique) else unique


def is_number(word: str) -> bool:
    """Return whether a word is written as a number."""
    return _NUMBER.fullmatch(word) is not None


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf", re.ASCII)


def _word(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else "" if math.isnan(value) else str(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    word = "" if value is None else str(value).strip()
    return "" if word in ("nan", "NaN") else word


def unprintable(path: Path) -> None:
    """Raise InputError for a name that is not UTF-8: it could be neither stored nor shown."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"the name of {str(path)!a} is not UTF-8", "rename it") from None


def unknown(where: str, noun: str, name: str, known: Sequence[str]) -> InputError:
    """Return the error for a column or array that is not there, with the nearest one or the first few."""
    near = closest(name, known)
    if not near.startswith("did") and len(known) > 10:
        near = f"choose from: {', '.join(known[:10])}, ... ({len(known)} in all)"
    return InputError(f"{where} has no {noun} '{name}'", near)
