"""Readers of users' files: one module per format, each of which returns ``RawSamples``.

``preparation.cleaning`` checks these.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import NO_DIALECT, Column, Dialect
from pflcli.core.errors import InputError, closest
from pflcli.core.foreign import require_room, require_short

ABSENT = "none"
"""The value of an option for a column that does not exist, such as the client's if samples have no clients yet."""

KEEP = "keep "
"""The beginning of the role of a kept column."""


def hash_files(root: Path, paths: Iterable[Path]) -> str:
    """Return a hash of files and of their paths below ``root``, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()}\n{content}\n".encode())
    return digest.hexdigest()


def require_folder(root: Path) -> None:
    """Raise InputError unless ``root`` is a folder."""
    if not root.is_dir():
        raise InputError(f"{root} {'is not a folder' if root.exists() else 'does not exist'}")


@dataclass(frozen=True)
class Like:
    """The ``classes`` and ``columns`` of ``name`` that new data must have; each is empty if there are none.

    New data may call a column by a key of ``spellings``. Columns in ``coded`` have words, be they known or not.
    """

    name: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    spellings: Mapping[str, str] = field(default_factory=dict)
    coded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Roles:
    """The columns of a table, or the arrays, with the metadata of samples; None if the user names none.

    ``client``, ``label`` and ``split`` contain each sample's client, class and split. ``group`` is the same for samples
    that belong together, such as one patient's. ``order`` is the time of recording. The columns ``keep`` are no
    features; with ``may_lack``, a file may lack them.
    """

    client: str | None = None
    label: str | None = None
    split: str | None = None
    group: str | None = None
    order: str | None = None
    keep: tuple[str, ...] | None = None
    may_lack: bool = False

    @property
    def metadata(self) -> dict[str, str]:
        """The columns or arrays that the user named by role, that of a kept column being ``keep NAME``."""
        return self.splitting | {f"{KEEP}{name}": name for name in self.kept}

    def wanted(self, names: Sequence[str]) -> dict[str, str]:
        """Return the columns or arrays that a file with these ``names`` must have, and the kept ones that it may."""
        lacking = {name for name in self.kept if self.may_lack and name not in names}
        return {role: name for role, name in self.metadata.items() if role in self.splitting or name not in lacking}

    @property
    def kept(self) -> list[str]:
        """The columns or arrays that are kept."""
        return [name for name in self.keep or () if name != ABSENT]

    @property
    def splitting(self) -> dict[str, str]:
        """The columns or arrays of ``split``, ``group`` and ``order`` that the user named."""
        names = {"split": self.split, "group": self.group, "order": self.order}
        return {role: name for role, name in names.items() if name not in (None, ABSENT)}


def option(role: str) -> str:
    """Return the option that names the column or array for a role."""
    return {"split": "--split-column"}.get(role, f"--{role.partition(' ')[0]}")


@dataclass(frozen=True)
class Condition:
    """A comparison with a ``value``, which makes two ``classes`` of the labels: that of its opposite, and its own."""

    sign: str
    value: str
    classes: tuple[str, str]

    @property
    def orders(self) -> bool:
        """Whether it orders numbers, instead of comparing names."""
        return "<" in self.sign or ">" in self.sign


@dataclass(frozen=True)
class RawSamples:
    """Samples as read from a file; only their format was checked.

    ``x`` (n, ...) are numbers, NaN if missing; ``label`` (n,) and ``owner`` (n,) are text, empty if missing.
    ``place(sample, role, index)`` returns the place of a value in the file, where the role may be "features".
    ``columns`` are those of a table. A column with words has one 0/1 feature per word, all NaN if the word is missing.
    ``classes`` are the names of the labels, if the file has them. ``remarks`` are shown to the user. ``metadata`` has
    the text (n,) of each of the roles of ``Roles.metadata``. ``dialect`` is how words are
    read. ``cell`` takes the arguments of ``place`` and returns the text of a cell; it is None for arrays and images.
    ``names`` are the columns or arrays of the roles. A ``condition`` makes two classes of the labels. With
    ``declares_classes``, the format says that each distinct label is a class, as a folder of images does.
    ``left_out`` are the columns of a table that are no features, as
    pandas Series, or None if the user left them out; ``marks`` are those of ``--strip`` around the numbers of a column,
    empty where numbers have none.
    """

    x: NDArray[Any]
    label: NDArray[np.str_]
    owner: NDArray[np.str_] | None
    place: Callable[[int, str, Sequence[int]], str]
    columns: tuple[Column, ...] = ()
    classes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    metadata: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    dialect: Dialect = NO_DIALECT
    cell: Callable[[int, str, Sequence[int]], str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    condition: Condition | None = None
    declares_classes: bool = False
    left_out: Mapping[str, Any] = field(default_factory=dict)
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def require_same_length(self, name: str) -> None:
        """Raise InputError unless all arrays have the same length, above 0; ``name`` is the file in the message."""
        lengths = {"features": len(self.x), "labels": len(self.label)}
        lengths |= {} if self.owner is None else {"clients": len(self.owner)}
        lengths |= {f"values of the {role.removeprefix(KEEP)}": len(words) for role, words in self.metadata.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{name}: " + ", ".join(f"{count} {role}" for role, count in lengths.items()))
        if not len(self.label):
            raise InputError(f"{name} has no samples")

    def select(self, rows: NDArray[np.int64]) -> RawSamples:
        """Return the samples at ``rows``, which keep their places in the file."""
        cell = self.cell
        return replace(
            self,
            x=self.x[rows],
            label=self.label[rows],
            owner=None if self.owner is None else self.owner[rows],
            metadata={role: words[rows] for role, words in self.metadata.items()},
            place=lambda row, role, at: self.place(int(rows[row]), role, at),
            cell=None if cell is None else lambda row, role, at: cell(int(rows[row]), role, at),
        )

    def hash_features(self) -> list[bytes]:
        """Return a hash of the features of each sample; -0.0 is 0.0."""
        return [hashlib.blake2b(np.ascontiguousarray(row + 0).tobytes(), digest_size=16).digest() for row in self.x]


def to_text(values: NDArray[Any], where: str) -> NDArray[np.str_]:
    """Return labels or names (n,) as text: whole floats as integers, NaN and None as empty text.

    Raises InputError, which names ``where``, for values that are neither text nor numbers, and for a name that is too
    long.
    """
    if values.dtype.kind in "biu":
        return values.astype(np.str_)
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
    elif values.dtype.kind not in "SUTO":
        raise InputError(f"{where}: {values.dtype} is neither text nor a number")
    try:
        words = [_to_word(value) for value in values.tolist()]
    except UnicodeDecodeError as error:
        raise not_utf8_error(where, error.object) from None
    longest = max(words, key=len, default="")
    require_short(where, longest)
    require_room(where, 4 * len(longest) * len(words))  # each word takes the space of the longest
    return np.asarray(words, dtype=np.str_)


def sort_words(words: Iterable[str]) -> list[str]:
    """Return the distinct words in order: numbers by value, others alphabetically."""
    unique = sorted(set(words))
    return sorted(unique, key=float) if all(_NUMBER.fullmatch(word) for word in unique) else unique


def is_number(word: str) -> bool:
    """Return whether a word is written as a number."""
    return _NUMBER.fullmatch(word) is not None


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf", re.ASCII)


def _to_word(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else "" if math.isnan(value) else str(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    word = "" if value is None else str(value).strip()
    return "" if word in ("nan", "NaN") else word


def require_utf8_name(path: Path) -> None:
    """Raise InputError for a name that is not UTF-8: it could not be stored or shown."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"the name of {str(path)!a} is not UTF-8", "rename it") from None


def not_utf8_error(where: str, word: bytes) -> InputError:
    """Return the error for bytes that are not text in UTF-8."""
    return InputError(
        f"{where} contains {word[:40]!r}, which is not UTF-8",
        "write it as UTF-8: word.decode('latin-1') if it is Latin-1",
    )


def missing_name_error(where: str, noun: str, name: str, known: Sequence[str]) -> InputError:
    """Return the error for a missing column or array, with the nearest name or the first few."""
    near = closest(name, known)
    if not near.startswith("did") and len(known) > 10:
        near = f"choose from: {', '.join(known[:10])}, ... ({len(known)} in all)"
    return InputError(f"{where} has no {noun} '{name}'", near)
