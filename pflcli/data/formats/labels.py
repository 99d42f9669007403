"""Labels made from a column: a condition such as ``num>0``, and a map from several classes to fewer."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import RawSamples, normalize_numbers
from pflcli.data.formats.cells import plain
from pflcli.errors import InputError, UsageError, closest

_OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    ">=": (operator.ge, "<"), "<=": (operator.le, ">"), "!=": (operator.ne, "=="), "==": (operator.eq, "!="),
    ">": (operator.gt, "<="), "<": (operator.lt, ">="), "=": (operator.eq, "!="),
}  # fmt: skip
"""The comparison of each sign, and the sign of its opposite."""
_CONDITION = re.compile(r"(.+?)\s*(>=|<=|!=|==|>|<|=)\s*(.+)")


@dataclass(frozen=True)
class Condition:
    """A comparison of a ``column`` with a ``value``, which makes two classes."""

    column: str
    sign: str
    value: str

    def apply(self, raw: RawSamples) -> RawSamples:
        """Return the samples with two classes, the condition and its opposite; a missing label stays missing.

        Raises InputError, with the place, for a label that is not a number if the condition orders numbers.
        """
        compare, opposite = _OPERATORS[self.sign]
        sign = "==" if self.sign == "=" else self.sign
        names = f"{self.column}{sign}{self.value}", f"{self.column}{opposite}{self.value}"
        words, is_missing = raw.label, raw.label == ""
        if sign in ("==", "!="):
            same = normalize_numbers(np.append(words, self.value))
            holds = compare(same[:-1], same[-1])
        else:
            numbers = [plain(word, raw.dialect) if word else "nan" for word in words.tolist()]
            for row, number in enumerate(numbers):
                if number is None:
                    raise InputError(
                        f"{raw.place(row, 'label', ())}: '{words[row]}' is not a number, as {names[0]} needs",
                        "correct it",
                    )
            holds = compare(np.asarray([float(str(number)) for number in numbers]), float(self.value))
        label = np.where(is_missing, "", np.where(holds, *names))
        return replace(raw, label=label, classes=(names[1], names[0]) if not is_missing.all() else ())


def parse_condition(label: str | None, names: Sequence[str]) -> tuple[str | None, Condition | None]:
    """Return the column of a label and the condition on it, None for the plain name of a column or array.

    Raises UsageError for a condition that orders words.
    """
    match = None if label is None or label in names else _CONDITION.fullmatch(label)
    if match is None or match[1] not in names:
        return label, None
    condition = Condition(match[1], match[2], match[3])
    try:
        float(condition.value)
    except ValueError:
        if "<" in condition.sign or ">" in condition.sign:
            raise UsageError(
                f"--label '{label}' compares with '{condition.value}', which is not a number", f"--label '{match[1]}>0'"
            ) from None
    return condition.column, condition


def map_classes(words: NDArray[np.str_], names: Mapping[str, str], known: Sequence[str]) -> NDArray[np.str_]:
    """Return the classes (n,) with new ``names``; several may get the same one.

    Raises UsageError for an old name that neither occurs nor is a ``known`` class.
    """
    present = {*np.unique(words).tolist(), *known}
    for old in names:
        if old not in present:
            raise UsageError(f"--label-map: no label is '{old}'", closest(old, present))
    return np.asarray([names.get(word, word) for word in words.tolist()], dtype=np.str_)
