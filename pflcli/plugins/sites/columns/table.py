"""The table that sites agree on: a file in TOML that ``pfl import --like`` reads.

A coordinator may write one by hand, with the kinds, units, words and accepted names of columns; ``pfl federation
columns`` writes one with the scales too, and with the training samples of each site::

    label = "num>0"
    missing = "median"
    standardize = "federation"

    [columns.age]
    unit = "years"
    names = ["Age", "alter"]

    [columns.sex]
    kind = "words"
    words = ["f", "m"]

    [columns.num]
    kind = "target"
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Strict

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.codebook import Codebook, Column
from pflcli.core import foreign, tasks
from pflcli.core.errors import InputError, closest
from pflcli.core.tasks import CLASSES, Labels
from pflcli.data.formats import Like
from pflcli.data.preparation.earlier_dataset import Earlier
from pflcli.plugins.sites.columns.summary import ROLES, Kind, Name, Task, Unit

_MAX_BYTES = 1 << 22
_CLOSED = {"extra": "forbid", "allow_inf_nan": False}
_Whole = Annotated[int, Strict(), Ge(0), Le(1 << 40)]
_Number = Annotated[float, Strict()]
_Fraction = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class TableColumn:
    """A column by its ``kind`` and ``unit``; a site may call it by one of ``names``.

    ``task`` is that of a target, as ``--task`` names it; empty for classes. ``words`` are those of a feature of words,
    in the order of its 0/1 features; empty if each site's own are meant.
    With ``has_missing``, one more feature marks missing values, for which the ``median`` stands. The others are None if
    no summary was read.
    """

    __pydantic_config__ = _CLOSED
    kind: Kind = "number"
    unit: Unit = ""
    task: Task = ""
    names: tuple[Name, ...] = ()
    words: tuple[Name, ...] = ()
    has_missing: Annotated[bool, Strict()] = False
    mean: _Number | None = None
    deviation: Annotated[float, Strict(), Ge(0)] | None = None
    median: _Number | None = None


@dataclass(frozen=True)
class Table:
    """What sites agree on: ``columns`` by name in their order, and how tables are read.

    ``label``, the column of the kind target if None, ``missing`` and ``standardize`` are options of ``pfl import``.
    ``classes`` are in the order of their numbers. ``sites`` are the training samples of each site, by name and in their
    order; they were drawn by ``fractions`` and ``seed``.
    """

    __pydantic_config__ = _CLOSED
    columns: Annotated[dict[Name, TableColumn], Len(1, 10_000)]
    label: Name | None = None
    classes: tuple[Name, ...] = ()
    missing: Literal["error", "drop", "median"] = "error"
    standardize: Literal["none", "federation", "client"] = "none"
    seed: _Whole = 0
    fractions: tuple[_Fraction, _Fraction, _Fraction] | None = None
    sites: dict[Name, _Whole] = field(default_factory=dict)

    @property
    def features(self) -> dict[str, TableColumn]:
        """The columns that are features."""
        return {name: column for name, column in self.columns.items() if column.kind in ("number", "words")}

    def names_of(self, kind: Kind) -> list[str]:
        """Return the columns of a kind."""
        return [name for name, column in self.columns.items() if column.kind == kind]

    @property
    def spellings(self) -> dict[str, str]:
        """The column that each accepted name stands for."""
        return {spelling: name for name, column in self.columns.items() for spelling in column.names}

    @property
    def is_measured(self) -> bool:
        """Whether the scales of features are known."""
        return bool(self.sites)

    @property
    def labels(self) -> Labels | None:
        """What the target is, with its scale if that is known; None for classes."""
        (column,) = (column for column in self.columns.values() if column.kind == "target")
        task = tasks.parse(column.task or CLASSES, column.unit if column.task else "")
        if task is None:
            return None
        if column.mean is not None and column.deviation is not None:
            task = task.fitted_to_moments(column.mean, column.deviation)
        return Labels.of(task)

    def codebook(self) -> Codebook:
        """Return the codebook of features, with scales and medians as the import and ``missing`` need them."""
        numbers: list[tuple[float, float, float]] = []
        columns = []
        for name, each in self.features.items():
            column = Column(name, each.words, each.has_missing and self.missing == "median")
            columns.append(column)
            numbers += [(each.mean or 0.0, each.deviation or 0.0, each.median or 0.0)] * (each.kind == "number")
            # Features that are 0 or 1 are not standardized.
            numbers += [(0.0, 1.0, 0.0)] * ((each.kind == "words") * len(each.words) + column.gaps)
        scales = list(zip(*numbers, strict=True))
        is_scaled = self.is_measured and self.standardize == "federation"
        return Codebook(
            classes=self.classes,
            features=tuple(feature for column in columns for feature in column.all_features),
            columns=tuple(columns),
            mean=scales[0] if is_scaled else (),
            sd=scales[1] if is_scaled else (),
            median=scales[2] if self.is_measured and self.missing == "median" else (),
            unit="" if self.labels is None else self.labels.unit,
        )

    def encode(self) -> bytes:
        """Return the table in TOML."""
        return ("\n".join(_lines(self)) + "\n").encode()


def _lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table in TOML; fields with their defaults are left out."""
    yield "# What sites agree on: pfl import TABLE --like THIS FILE -o DIR"
    yield from _assignments(table, ("columns", "sites"))
    if table.sites:
        yield from ("", "[sites]  # training samples")
        yield from (f"{_text(name)} = {train}" for name, train in table.sites.items())
    for name, column in table.columns.items():
        yield from ("", f"[columns.{_text(name)}]", f"kind = {_text(column.kind)}")
        yield from _assignments(column, ("kind",))


def _assignments(record: Any, but: tuple[str, ...]) -> Iterator[str]:
    for each in fields(record):
        value = getattr(record, each.name)
        if each.name not in but and value != each.default:
            yield f"{each.name} = {_text(value)}"


def _text(value: Any) -> str:
    """Return a value as TOML, whose strings and lists of them are those of JSON."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read(path: Path) -> Table:
    """Read a table; raises InputError, which names the file, unless it is one."""
    with foreign.reading(path, "a table that sites agree on", "docs/deployment.md shows one"):
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has more than {foreign.size(_MAX_BYTES)}, and is no table that sites agree on")
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        _require_known(values, Table, "")
        for name, column in values.get("columns", {}).items():
            _require_known(column, TableColumn, f"[columns.{name}]: ")
        table: Table = manifests.validate(Table, values)
        _require_consistent(table)
    return table


def _require_known(values: Any, record: Any, where: str) -> None:
    """Raise ValueError, with the nearest name, for a key that no such record has."""
    known = [each.name for each in fields(record)]
    for key in values if isinstance(values, dict) else ():
        if key not in known:
            raise ValueError(f"{where}unknown key '{key[:80]}'; {closest(key, known)}")


def _require_consistent(table: Table) -> None:
    """Raise ValueError if the parts of a table contradict each other."""
    names = [*table.columns, *(name for column in table.columns.values() for name in column.names)]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"the name '{twice[0]}' stands for two columns")
    for kind in ("target", "identifier", "time"):
        if len(found := table.names_of(kind)) > 1:
            raise ValueError(f"'{found[0]}' and '{found[1]}' are both of the kind {kind}")
    if not table.names_of("target"):
        raise ValueError('no column has kind = "target", which is learned')
    if not table.features:
        raise ValueError("no column is a feature")
    for name, column in table.columns.items():
        if column.words and column.kind != "words":
            raise ValueError(f'[columns.{name}]: only columns of kind = "words" have words')
        if column.kind == "words" and table.is_measured and not column.words:
            raise ValueError(f"[columns.{name}]: it has no words")
        if (column.kind == "number" and table.is_measured) and None in (column.mean, column.deviation, column.median):
            raise ValueError(f"[columns.{name}]: it has not all of mean, deviation and median")
        if column.task and column.kind != "target":
            raise ValueError(f'[columns.{name}]: only the column of kind = "target" has a task')
        if column.task and table.is_measured and None in (column.mean, column.deviation):
            raise ValueError(f"[columns.{name}]: it has not both mean and deviation")
    labels = table.labels  # raises UsageError for an unknown task
    if table.is_measured and ((labels is None and len(table.classes) < 2) or table.fractions is None):
        raise ValueError("it has sites, and lacks classes or fractions")


@dataclass(frozen=True)
class EarlierTable(Earlier):
    """A table for ``pfl import --like``, in place of an earlier dataset."""

    table: Table | None = None

    @property
    def like(self) -> Like:
        """The columns and classes that new data must have, and the names that they may have in them."""
        assert self.table is not None
        coded = {name for name, column in self.table.features.items() if column.kind == "words"}
        return Like(self.name, self.book.classes, self.book.columns, self.table.spellings, frozenset(coded))

    @property
    def digest(self) -> str:
        """Return a hash of everything that new data take over."""
        assert self.table is not None
        return hashlib.sha256(self.table.encode()).hexdigest()

    def hint(self) -> str:
        """Return a hint if the table has no scales yet; empty otherwise."""
        if self.table is None or self.table.is_measured or not (self.standardize or self.fill):
            return ""
        return f"{self.name} has no scales yet: pfl site columns makes the summary from which sites agree on them"


def read_earlier(path: Path) -> EarlierTable:
    """Return what ``pfl import --like`` takes over from the table in a file."""
    table = read(path)
    (target,) = table.names_of("target")
    request: Mapping[str, Any] = {
        "client": "none",
        "label": table.label or target,
        "missing": table.missing,
        "standardize": "" if table.standardize == "none" else table.standardize,
        "keep": table.names_of("kept") or None,
        **{ROLES[kind]: name for kind in ("identifier", "time") for name in table.names_of(kind)},
    }
    return EarlierTable(str(path), table.codebook(), request, labels=table.labels, table=table)
