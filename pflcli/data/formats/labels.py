"""Labels: numbers, or classes, with a condition such as ``num>0`` or a map from several classes to fewer."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.engine.tasks import Task
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.wording import listed
from pflcli.data.formats import Condition, Like, RawSamples, is_number, sort_words, spellings
from pflcli.data.formats.cells import find_readings, is_date, list_missing, plain

_OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    ">=": (operator.ge, "<"), "<=": (operator.le, ">"), "!=": (operator.ne, "=="), "==": (operator.eq, "!="),
    ">": (operator.gt, "<="), "<": (operator.lt, ">="),
}  # fmt: skip
"""The comparison of each sign, and the sign of its opposite."""
_MAX_INTEGER_CLASSES = 20
"""A label with more distinct whole numbers may be a quantity, and with more words an id or text."""
_MIN_SAMPLES_PER_WORD = 10
"""Average samples of each word that is rather a class than an id or text."""
_CONDITION = re.compile(r"(.+?)\s*(>=|<=|!=|==|>|<|=)\s*(.+)")


def parse_condition(label: str | None, names: Sequence[str]) -> tuple[str | None, Condition | None]:
    """Return the column of a label and the condition on it, None for the plain name of a column or array.

    Raises UsageError for a condition that orders words.
    """
    match = None if label is None or label in names else _CONDITION.fullmatch(label)
    if match is None or match[1] not in names:
        return label, None
    column, sign, value = match.groups()
    sign = "==" if sign == "=" else sign
    condition = Condition(sign, value, (f"{column}{_OPERATORS[sign][1]}{value}", f"{column}{sign}{value}"))
    try:
        float(value)
    except ValueError:
        if condition.orders:
            raise UsageError(
                f"--label '{label}' compares with '{value}', which is not a number", f"--label '{column}>0'"
            ) from None
    return column, condition


def read_labels(raw: RawSamples, like: Like | None, *, are_classes: bool = False) -> RawSamples:
    """Return samples whose labels are names of classes, empty if missing, and which have the ``classes`` if known.

    These are the classes of ``like``, of the condition or of the file, by the names of ``--label-map``. Raises
    InputError for labels that ``spellings.read`` asks about, unless all classes are known; with ``are_classes``, words
    that may mark a missing label are classes.
    """
    condition, given, words = raw.condition, like.classes if like else (), raw.label
    classes = () if condition else given or raw.classes
    new_names = dict(raw.dialect.label_map or ())
    if raw.classes and not condition and not np.isin(words, ("", *raw.classes)).all():
        name_of = {str(number): name for number, name in enumerate(raw.classes)}
        words = np.asarray([name_of.get(word, word) for word in words.tolist()], dtype=np.str_)
    # A condition that orders numbers does not ask whether 0.5 and 0.50 are the same.
    fold_case = bool(condition and condition.orders) or raw.dialect.fold_case
    words = spellings.read(
        words,
        "class",
        lambda row: raw.place(row, "label", ()),
        replace(raw.dialect, fold_case=fold_case),
        [condition.value] if condition else [*classes, *new_names],
        asks=not classes,
        new_names=new_names,
        is_declared=are_classes or raw.declares_classes,
    )
    if condition:
        words, classes = _apply(condition, words, raw), given or condition.classes
    if new_names and not given:
        present = {*raw.label.tolist(), *words.tolist(), *classes}
        for old in new_names.keys() - present:
            raise UsageError(f"--label-map: no label is '{old}'", closest(old, present))
        classes = tuple(dict.fromkeys(new_names.get(name, name) for name in classes))
    label = np.asarray([new_names.get(word, word) for word in words.tolist()], dtype=np.str_)
    return replace(raw, label=label, classes=classes)


def _apply(condition: Condition, words: NDArray[np.str_], raw: RawSamples) -> NDArray[np.str_]:
    """Return the classes (n,) of the labels ``words`` (n,) of ``raw``; a missing label stays missing.

    Raises InputError, with the place, for a label that is not a number if the condition orders numbers.
    """
    compare = _OPERATORS[condition.sign][0]
    if condition.orders:
        number_of = {word: plain(word, raw.dialect) if word else "nan" for word in np.unique(words).tolist()}
        bad = np.isin(words, [word for word, number in number_of.items() if number is None])
        if bad.any():
            row = int(np.argmax(bad))
            problem = f"'{words[row]}' is not a number, as {condition.classes[1]} needs"
            raise InputError(f"{raw.place(row, 'label', ())}: {problem}", "correct it")
        holds = compare(np.asarray([float(str(number_of[word])) for word in words.tolist()]), float(condition.value))
    else:
        holds = compare(words, spellings.shorten(condition.value, raw.dialect))
    return np.where(words == "", "", np.where(holds, *condition.classes[::-1]))


def read_numbers(raw: RawSamples, task: Task) -> RawSamples:
    """Return samples whose labels are numbers in the spelling of Python, empty if missing.

    Words that mark missing numbers among features do so here. Raises UsageError for options that make classes,
    InputError, with the place, for a label that is not a number.
    """
    if raw.condition is not None or raw.dialect.label_map:
        option = "a condition in --label" if raw.condition is not None else "--label-map"
        raise UsageError(f"{option} makes classes, and --task is {task.kind}", "leave out one of them")
    missing, number_of = {"", *list_missing(raw.dialect)}, dict[str, str]()
    marks = {float(mark) for mark in raw.dialect.na or () if is_number(mark)}
    for word in np.unique(raw.label).tolist():
        number = "" if word in missing else plain(word, raw.dialect)
        if number is None:
            row = int(np.argmax(raw.label == word))
            problem = f"{raw.place(row, 'label', ())}: '{word}' is not a number, as the task {task.kind} needs"
            readings = [f"{each.option} reads it as {each.number}" for each in find_readings([word], raw.dialect)]
            raise InputError(problem, *readings, "if each label is a class: --task classes")
        number_of[word] = "" if number and float(number) in marks else number
    return replace(raw, label=np.asarray([number_of[word] for word in raw.label.tolist()], dtype=np.str_))


def parse_numbers(raw: RawSamples, rows: NDArray[np.int64], task: Task, *, fits: bool = True) -> NDArray[np.float64]:
    """Return the labels (n,) of ``rows`` as numbers; raises InputError for one that is no label of the task.

    If a task is fitted to them (``fits``), they must not all be the same.
    """
    y = raw.label[rows].astype(np.float64)
    found = task.find_invalid(y)
    if fits and found is None and len(np.unique(y)) == 1:
        found = 0, "is that of every sample, so there is nothing to learn"
    if found is not None:
        row = int(rows[found[0]])
        raise InputError(
            f"{raw.place(row, 'label', ())}: {raw.label[row]} {found[1]}", "correct it, or choose another --task"
        )
    return y


def number_classes(
    raw: RawSamples, rows: NDArray[np.int64], like: Like | None, *, are_classes: bool = False
) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels 0..C-1 (n,) of ``rows`` and the names of classes: those of ``raw``, else all labels in order.

    Raises InputError for an unknown class, and for a single class unless ``like`` has the classes. If ``raw`` has no
    classes, it raises it also for fractions, and unless ``are_classes`` for labels that do not look like classes.
    """
    words = raw.label[rows]

    def place(bad: NDArray[np.bool_]) -> str:
        return raw.place(int(rows[np.argmax(bad)]), "label", ())

    classes = list(raw.classes)
    if not classes:
        classes = sort_words(words.tolist())
        _require_classes(raw, classes, words, place, are_classes=are_classes or raw.declares_classes)
    bad = ~np.isin(words, classes)
    if bad.any():
        word = str(words[np.argmax(bad)])
        raise InputError(
            f"{place(bad)}: '{word}' is not among the classes of {like.name if like else 'the file'}: "
            f"{', '.join(classes[:10])}",
            f"use one of these{'' if like else ', or its number'}; a new class requires new training",
            *spellings.suggest(word, classes, raw.dialect),
        )
    if not (like and like.classes) and len(np.unique(words)) == 1:
        raise InputError(
            f"{place(~bad)}: every label is '{words[0]}', so there is nothing to learn", "choose another --label"
        )
    order = {word: number for number, word in enumerate(classes)}
    return np.asarray([order[word] for word in words.tolist()], dtype=np.int64), classes


def _require_classes(
    raw: RawSamples,
    classes: Sequence[str],
    words: NDArray[np.str_],
    place: Callable[[NDArray[np.bool_]], str],
    *,
    are_classes: bool,
) -> None:
    """Raise InputError if ``classes``, the distinct labels of ``words`` (n,), look like something else.

    ``place`` returns the place of the first label of a mask (n,).
    """
    numbers, start = [float(word) for word in classes if is_number(word)], words == words[0]
    are_numbers, insist = len(numbers) == len(classes), "if each is a class: --task classes"
    if are_numbers:
        middle = f"{raw.names.get('label', 'COL')}>{numbers[(len(numbers) - 1) // 2]:g}"
        divide = f"make two classes by a condition, such as --label '{middle}', or bin it into classes first"
        fraction = next((word for word in words.tolist() if not float(word).is_integer()), None)
        if fraction is not None:
            raise InputError(
                f"{place(words == fraction)}: {fraction} is a fraction, and no name of a class",
                "if labels are a quantity: --task quantity",
                divide,
            )
    if are_classes:
        return
    if all(map(is_date, classes)):
        problem, remedy = f"'{words[0]}' is a date", "choose another --label"
    elif are_numbers and len(classes) > _MAX_INTEGER_CLASSES:
        problem = f"the label has {len(classes)} whole numbers in {len(words)} samples ({listed(classes, 4)})"
        raise InputError(
            f"{place(start)}: {problem}: are they a quantity, counts, or classes?",
            "--task quantity, --task count or --task classes",
            divide,
        )
    elif len(classes) > _MAX_INTEGER_CLASSES and len(words) < _MIN_SAMPLES_PER_WORD * len(classes):
        problem = f"the label has {len(classes)} different words in {len(words)} samples ({listed(classes, 4)})"
        problem, remedy = f"{problem}, as an id or text has", "choose another --label"
    else:
        return
    raise InputError(f"{place(start)}: {problem}", remedy, insist)
