"""The summary that a site makes of its table: a small file in JSON, and all that leaves the site before the rounds.

It has the names and kinds of columns, words and classes with counts, and the moments of numbers, also of a target that
is one, among training samples, rounded as ``measures`` says. Words and classes of fewer than five rows are left out.
The number of training samples is exact, as methods weigh updates by it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le, Len
from numpy.typing import NDArray
from pydantic import Strict

from pflcli.artifacts import codebook
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.codebook import Column
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.reader import Artifact
from pflcli.core import foreign
from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.splits import FRACTIONS, FRACTIONS_BESIDE_TEST
from pflcli.data.preparation import imported_dataset
from pflcli.data.preparation.deal import assemble
from pflcli.plugins.sites.columns import measures
from pflcli.plugins.sites.columns.measures import BASE, Moments

VERSION: Literal[1] = 1
"""The version of the format."""
_MAX_BYTES = 1 << 22
"""Maximum bytes of a summary: 10,000 columns."""
_CLOSED = {"extra": "forbid", "allow_inf_nan": False}
_Whole = Annotated[int, Strict(), Ge(0), Le(1 << 40)]
_Number = Annotated[float, Strict()]
Name = Annotated[str, Len(1, foreign.NAME_LENGTH)]
Unit = Annotated[str, Len(0, 40)]
Task = Annotated[str, Len(0, 40)]
Kind = Literal["number", "words", "target", "identifier", "time", "kept"]
"""What a column is: a feature of numbers or words, or that of ``--label``, ``--group``, ``--order`` or ``--keep``."""
ROLES = {"target": "label", "identifier": "group", "time": "order", "kept": "keep"}
"""The options of ``pfl import`` that name columns of these kinds."""


@dataclass(frozen=True)
class Frequency:
    """A ``word`` or class, and the number of ``rows`` that have it, a multiple of five."""

    __pydantic_config__ = _CLOSED
    word: Name
    rows: _Whole


@dataclass(frozen=True)
class ColumnSummary:
    """A column of a site's table, with its ``unit``, empty if it is not stated.

    ``words`` are those of features of words, and the classes of the target, in all rows. ``has_missing`` says whether a
    row lacks the value, and ``lacking`` how many training samples do, a multiple of five. ``mean``, ``deviation`` and
    ``median`` are those of a number among training samples, None if fewer than five have one. A target that is a number
    has its ``task``, as ``--task`` names it, and no median.
    """

    __pydantic_config__ = _CLOSED
    name: Name
    kind: Kind
    unit: Unit = ""
    task: Task = ""
    words: tuple[Frequency, ...] = ()
    has_missing: Annotated[bool, Strict()] = False
    lacking: _Whole = 0
    mean: _Number | None = None
    deviation: Annotated[float, Strict(), Ge(0)] | None = None
    median: _Number | None = None

    def moments(self, train: int) -> Moments | None:
        """Return the moments of a number of which there are ``train`` samples; None if they did not leave the site."""
        if self.mean is None or self.deviation is None:
            return None
        median = self.mean if self.median is None else self.median
        return Moments(max(train - self.lacking, 0), self.mean, self.deviation, median)


@dataclass(frozen=True)
class Reading:
    """How a site imports its table: options of ``pfl import``, which must be the same at all sites."""

    __pydantic_config__ = _CLOSED
    label: Name
    missing: Literal["error", "drop", "median"]
    standardize: Literal["none", "federation", "client"]


@dataclass(frozen=True)
class Summary:
    """What the ``site`` knows of its table, of the ``sites`` of a federation in their order.

    ``train`` of its samples are for training; the ``fractions`` and the ``seed`` say which.
    """

    __pydantic_config__ = _CLOSED
    version: Literal[1]
    site: Name
    sites: Annotated[tuple[Name, ...], Len(1, 10_000)]
    seed: _Whole
    fractions: tuple[Annotated[float, Ge(0), Le(1)], Annotated[float, Ge(0), Le(1)], Annotated[float, Ge(0), Le(1)]]
    train: _Whole
    reading: Reading
    columns: Annotated[tuple[ColumnSummary, ...], Len(1, 10_000)]

    def find(self, name: str) -> ColumnSummary | None:
        """Return the column of this name, None if there is none."""
        return next((column for column in self.columns if column.name == name), None)

    def encode(self) -> bytes:
        """Return the bytes of the file; columns have the fields of their kind alone."""
        fields = asdict(self)
        for column in fields["columns"]:
            for key, default in _EMPTY.items():
                if column[key] == default:
                    del column[key]
        return (json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


_EMPTY: dict[str, Any] = {
    "unit": "", "task": "", "words": (), "has_missing": False, "lacking": 0,
    "mean": None, "deviation": None, "median": None,
}  # fmt: skip
"""The fields of a column that are left out if they have these values."""


def read(path: Path) -> Summary:
    """Read a summary; raises InputError, which names the file, unless it is one."""
    form = "a summary of columns"
    with foreign.reading(path, form, "pfl site columns DATASET --client NAME --sites NAME,NAME -o FILE"):
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has more than {foreign.size(_MAX_BYTES)}, and is no summary of columns")
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict) and values.get("version") not in (None, VERSION):
            raise ValueError(f"it has version {str(values['version'])[:20]}, not {VERSION}")
        found: Summary = manifests.validate(Summary, values)
        _require_consistent(found)
    return found


def _require_consistent(found: Summary) -> None:
    """Raise ValueError if the parts of a summary contradict each other."""
    for what, names in (
        ("site", found.sites),
        ("column", [column.name for column in found.columns]),
        *((f"word of '{column.name}'", [each.word for each in column.words]) for column in found.columns),
    ):
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise ValueError(f"the {what} '{twice[0]}' is there twice")
        if unprintable := [name for name in names if not name.isprintable()]:
            raise ValueError(f"the {what} {unprintable[0]!a} is no text")
    if found.site not in found.sites:
        raise ValueError(f"its site '{found.site}' is not among its sites")
    if sum(column.kind == "target" for column in found.columns) != 1:
        raise ValueError("it has not one column of the kind target")
    for column in found.columns:
        if not column.unit.isprintable():
            raise ValueError(f"the unit of '{column.name}' is no text")
        if column.words and column.kind not in ("words", "target"):
            raise ValueError(f"'{column.name}' is a {column.kind}, and has words")
        is_target = column.kind == "target" and bool(column.task)
        medians = () if is_target else (column.median is None,)
        if len({column.mean is None, column.deviation is None, *medians}) > 1:
            raise ValueError(f"'{column.name}' has not all of mean, deviation and median")
        if column.mean is not None and column.kind != "number" and not is_target:
            raise ValueError(f"'{column.name}' is not of the kind number, and has a mean")
        if (column.task and not is_target) or (is_target and (column.words or column.median is not None)):
            raise ValueError(f"'{column.name}' has a task, which only a target has, without classes or a median")
        if column.lacking > found.train + BASE:
            raise ValueError(f"'{column.name}' lacks more values than there are training samples")


def summarize(
    source: Artifact, client: str, sites: Sequence[str], seed: int = 0, units: dict[str, str] | None = None
) -> tuple[Summary, list[str]]:
    """Return the summary of an imported dataset, and remarks for the site alone.

    The training samples are those that ``client`` has as one of the ``sites``, in this order, with this ``seed``.
    ``units`` are those of columns. Raises UsageError for an unknown name, InputError for data other than a table, and
    UnsuitedError for labels on whose scale sites cannot agree.
    """
    names = [*sites]
    if client not in names:
        raise UsageError(f"--sites has no '{client}'", closest(client, names))
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f"--sites has '{twice[0]}' twice", "name each site once")
    book, request = codebook.read(source), source.manifest.request
    samples = imported_dataset.load_samples(source, None)
    if not book.columns or samples.x.ndim != 2 or any(column.size for column in book.columns):
        raise InputError(f"{source.path} is no table of numbers and words, whose columns sites could agree on")
    if samples.task is not None:
        samples.task.fitted_to_moments(1.0, 1.0)  # can sites agree on it?
    units = units or {}
    for name in units:
        if name not in [column.name for column in book.columns]:
            near = closest(name, [each.name for each in book.columns])
            raise UsageError(f"--units: no feature is '{name}'", near, "pfl import --unit names that of labels")
    rows = _select_rows(source, samples, client)
    fractions, train = _find_training_rows(samples, rows, names.index(client), len(names), seed)
    remarks: list[str] = []
    columns: list[ColumnSummary] = []
    at = 0
    for column in book.columns:
        width = len(column.features)
        values = np.asarray(samples.x[:, at : at + width], np.float64)
        at += width + column.gaps
        columns.append(_summarize_feature(column, values, rows, train, units.get(column.name, ""), remarks))
    kinds = {option: kind for kind, option in ROLES.items()}
    for row in datasets.read_profile(source):
        role = "keep" if row.became == "kept" else row.became
        if role in kinds:
            found = ColumnSummary(row.column, kinds[role])  # type: ignore[arg-type]
            if role == "label" and samples.task is None:
                found = replace(found, words=_summarize_classes(book.classes, samples.y[rows], remarks))
            elif role == "label":
                found = _summarize_numbers(found, np.asarray(samples.y[train], np.float64), len(train), remarks)
                found = replace(found, unit=samples.task.unit, task=samples.task.word, median=None)
            columns.append(found)
    standardize = str(request["standardize"] or "")
    reading = Reading(
        request["label"],
        request["missing"],
        "client" if "client" in standardize else "federation" if standardize else "none",
    )
    summary = Summary(VERSION, client, tuple(names), seed, fractions, len(train), reading, tuple(columns))
    _require_consistent(summary)
    return summary, remarks


def _select_rows(source: Artifact, samples: Samples, client: str) -> NDArray[np.int64]:
    """Return the rows of the client; raises InputError if the dataset has several clients, none of which it is."""
    if samples.owner is None or len(owners := np.unique(samples.owner)) == 1:
        return np.arange(len(samples.y))
    if client not in owners:
        raise InputError(
            f"{source.path} has {len(owners)} clients, none of them '{client}'",
            "import the data of one site, with --client none",
        )
    return np.flatnonzero(samples.owner == client)


def _find_training_rows(
    samples: Samples, rows: NDArray[np.int64], number: int, count: int, seed: int
) -> tuple[tuple[float, float, float], NDArray[np.int64]]:
    """Return the fractions of splits, and the training rows that ``pfl partition`` gives client ``number``."""
    is_given = samples.is_test is not None
    fractions = FRACTIONS_BESIDE_TEST if is_given else FRACTIONS
    if samples.is_validation is not None:
        fractions = (1.0, 0.0, 0.0)
    result = assemble(samples, [rows if at == number else rows[:0] for at in range(count)], fractions, seed)
    return fractions, result.sample[slice(*result.offsets[3 * number : 3 * number + 2])]


def _summarize_feature(
    column: Column,
    values: NDArray[np.float64],
    rows: NDArray[np.int64],
    train: NDArray[np.int64],
    unit: str,
    remarks: list[str],
) -> ColumnSummary:
    """Return the summary of a column with features ``values`` (n, d); adds to ``remarks`` what is left out."""
    is_missing = np.isnan(values[:, 0])
    has_missing, lacking = bool(is_missing[rows].any()), measures.count(int(is_missing[train].sum()))
    if column.words:
        known = rows[~is_missing[rows]]
        frequencies = _count_words(column.words, values[known].sum(axis=0), f"words of '{column.name}'", remarks)
        return ColumnSummary(column.name, "words", unit, "", frequencies, has_missing, lacking)
    found = ColumnSummary(column.name, "number", unit, has_missing=has_missing, lacking=lacking)
    return _summarize_numbers(found, values[train[~is_missing[train]], 0], len(train) - lacking, remarks)


def _summarize_numbers(
    found: ColumnSummary, values: NDArray[np.float64], known: int, remarks: list[str]
) -> ColumnSummary:
    """Return the summary of a column with the moments of its ``values`` (n,), about ``known``, in training samples."""
    moments = measures.measure_rounded(values, known)
    if moments is None:
        remarks.append(f"'{found.name}' has a value in fewer than {BASE} training samples, and no mean leaves the site")
        return found
    if not moments.deviation and values.max() == values.min():
        remarks.append(
            f"WARNING: '{found.name}' is {moments.mean:g} in all {moments.known} training samples that have it, and"
            " whoever reads the summary knows this of each; if it marks a missing value: pfl import --na"
        )
    return replace(found, mean=moments.mean, deviation=moments.deviation, median=moments.median)


def _summarize_classes(classes: Sequence[str], y: NDArray[np.int64], remarks: list[str]) -> tuple[Frequency, ...]:
    return _count_words(classes, np.bincount(y, minlength=len(classes)), "classes", remarks)


def _count_words(words: Sequence[str], counts: NDArray[Any], what: str, remarks: list[str]) -> tuple[Frequency, ...]:
    """Return the words of at least ``BASE`` rows; adds to ``remarks`` which others there are."""
    pairs = [(word, int(rows)) for word, rows in zip(words, counts, strict=True)]
    if rare := [word for word, rows in pairs if 0 < rows < BASE]:
        listed = ", ".join(f"'{word}'" for word in rare)
        remarks.append(
            f"{listed}: {what} in fewer than {BASE} rows, which do not leave the site; if no other site sends them, the"
            " coordinator's table has to list them"
        )
    return tuple(Frequency(word, measures.count(rows)) for word, rows in pairs if rows >= BASE)


def facts(found: Summary) -> dict[str, Any]:
    """Return all that a summary contains, as JSON has it."""
    values: dict[str, Any] = json.loads(found.encode())
    return values
