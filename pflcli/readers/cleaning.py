"""From what stands in a file to samples that can be learned from: missing values, classes, scale."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError, UsageError
from pflcli.readers import Raw

_LARGEST = float(np.finfo(np.float32).max)
_EXACT = 2**24
"""Up to here float32 tells all integers apart."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf", re.ASCII)


@dataclass(frozen=True)
class Clean:
    """Samples without a gap; see ``artifacts.dataset`` for shapes."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    owner: NDArray[np.str_] | None
    classes: list[str]
    dropped: int
    mean: NDArray[np.float64] | None
    sd: NDArray[np.float64] | None
    remarks: tuple[str, ...]


def cleaned(raw: Raw, name: str, *, missing: str = "error", standardize: bool = False) -> Clean:
    """Check ``raw``, called ``name`` in errors, and return it with classes as numbers and features as float32.

    ``missing``: "error" refuses a missing value, "drop" leaves its sample out. ``standardize`` brings each feature to
    mean 0 and standard deviation 1. Raises InputError that says where the first bad value stands.
    """
    x, label, owner = raw.x, raw.label, raw.owner
    lengths = {"features": len(x), "labels": len(label)} | ({} if owner is None else {"clients": len(owner)})
    if len(set(lengths.values())) > 1:
        raise InputError(f"{name}: " + ", ".join(f"{count} {what}" for what, count in lengths.items()))
    if not len(label):
        raise InputError(f"{name} holds no samples")
    pictures = x.dtype == np.uint8 and x.ndim > 2
    if pictures and standardize:
        raise UsageError("--standardize is for features; pixels are scaled to [0, 1] anyway", "leave it out")
    if not pictures and x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    rows = np.flatnonzero(~_gaps(raw, x, missing))
    if not len(rows):
        raise InputError(f"{name}: every sample lacks a value", "give --features that leaves the empty column out")
    _bounded(x, raw, set(rows.tolist()) if len(rows) < len(x) else None)
    y, classes = _classes(label, rows, lambda row: raw.place(row, "label", ()))
    if len(rows) < len(x):
        x, owner = x[rows], None if owner is None else owner[rows]
    remarks = [*raw.remarks]
    if len(rows) < len(label):
        remarks.append(f"{len(label) - len(rows)} of {len(label)} samples lack a value and are left out")
    remarks += [f"'{name}' numbers the samples: --features without it?" for name in _counters(x, raw.features)]
    mean = sd = None
    if standardize:
        x, mean, sd = _standardized(x)
    elif not pictures:
        remarks += _hints(x, raw.features)
    dtype = np.uint8 if pictures else np.float32
    return Clean(x.astype(dtype, copy=False), y, owner, classes, len(label) - len(rows), mean, sd, tuple(remarks))


def _gaps(raw: Raw, x: NDArray[np.float64], missing: str) -> NDArray[np.bool_]:
    """Return which samples (n,) lack a value; raises InputError at the first unless they are to be dropped."""
    holes = {"client": None if raw.owner is None else raw.owner == "", "label": raw.label == ""}
    if x.dtype.kind == "f":
        holes["features"] = np.isnan(x.reshape(len(x), -1)).any(axis=1)
    known = {role: hole for role, hole in holes.items() if hole is not None}
    lost: NDArray[np.bool_] = np.logical_or.reduce(list(known.values()))
    if missing == "error" and lost.any():
        row = int(np.argmax(lost))
        role = next(role for role, hole in known.items() if hole[row])
        at = np.argwhere(np.isnan(x[row]))[0].tolist() if role == "features" else []
        raise InputError(
            f"{raw.place(row, role, at)}: no value",
            f"{lost.sum()} of {len(lost)} samples lack a value; fill it in, or --missing drop leaves them out",
        )
    return lost


def _bounded(x: NDArray[np.float64], raw: Raw, rows: set[int] | None) -> None:
    """Raise InputError at the first value, among ``rows`` if given, that float32 cannot hold."""
    if x.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore"):
        if not (np.nanmax(x, initial=0) > _LARGEST or np.nanmin(x, initial=0) < -_LARGEST):
            return
    for row, *at in np.argwhere(np.abs(x) > _LARGEST).tolist():
        if rows is None or row in rows:
            value = x[(row, *at)]
            what = "is not finite" if np.isinf(value) else "is too large for float32"
            raise InputError(f"{raw.place(row, 'features', at)}: {value:g} {what}", "mend it, or leave the row out")


def _classes(
    label: NDArray[np.str_], rows: NDArray[np.int64], place: Callable[[int], str]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels 0..C-1 (n,) of ``rows`` and the names of classes: numbers by value, words by letter.

    1 and 1.0 are the same class. Raises InputError for fractions, and where there is but one class.
    """
    found, first, y = np.unique(label[rows], return_index=True, return_inverse=True)
    words = [str(word) for word in found]
    if all(_NUMBER.fullmatch(word) for word in words):
        broken = [int(first[i]) for i, word in enumerate(words) if not float(word).is_integer()]
        if broken:
            row = int(rows[min(broken)])
            raise InputError(
                f"{place(row)}: {label[row]} is a quantity, and pfl learns classes",
                "cut it into classes first, such as low and high",
            )
        values = [int(word) if word.lstrip("+-").isdigit() else int(float(word)) for word in words]
        order = {value: rank for rank, value in enumerate(sorted(set(values)))}
        y = np.asarray([order[value] for value in values])[y]
        words = [str(value) for value in order]
    if len(words) == 1:
        raise InputError(
            f"{place(int(rows[0]))}: every label is '{words[0]}', so there is nothing to learn",
            "choose another --label",
        )
    return y.astype(np.int64), words


def _standardized(
    x: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return features of mean 0 and standard deviation 1 over all axes but the last, and both; constants become 0."""
    axes = tuple(range(x.ndim - 1))
    mean, sd = x.mean(axis=axes, dtype=np.float64), x.std(axis=axes, dtype=np.float64)
    # The deviation of a constant is not 0 but what rounding leaves of it.
    constant = (x.max(axis=axes) == x.min(axis=axes)) | (sd == 0)
    sd = np.where(constant, 0.0, sd)
    return np.where(constant, 0.0, (x - mean) / np.where(constant, 1.0, sd)), mean, sd


def _counters(x: NDArray[np.float64], features: tuple[str, ...]) -> list[str]:
    """Return the columns that hold each of n consecutive integers once: nothing to learn from."""
    return [
        name
        for at, name in enumerate(features)
        if len(x) > 2 and x[:, at].max() - x[:, at].min() == len(x) - 1 and np.all(np.diff(np.sort(x[:, at])) == 1)
    ]


def _hints(x: NDArray[np.float64], features: tuple[str, ...]) -> list[str]:
    """Return what a user may want to know of features that are taken as they are."""
    names = features or tuple(f"feature {i}" for i in range(x.shape[-1]))
    flat = x.reshape(-1, x.shape[-1])
    large = np.abs(flat).max(axis=0)
    hints = []
    for at in np.flatnonzero(large > _EXACT)[:3]:
        values = np.unique(flat[:, at])
        if len(np.unique(values.astype(np.float32))) < len(values):
            hints.append(f"'{names[at]}' is known to 7 digits only (float32): if it numbers things, leave it out")
    varied = [at for at in np.flatnonzero(large) if (flat[:, at] != flat[0, at]).any()]
    if varied and (large[varied].max() > 10 * large[varied].min() or large[varied].max() > 10):
        small, big = min(varied, key=lambda at: large[at]), max(varied, key=lambda at: large[at])
        spread = "" if small == big else f"'{names[small]}' to {large[small]:.3g}, "
        hints.append(
            f"SGD needs features of one scale; they go {spread}'{names[big]}' to {large[big]:.3g}: try --standardize"
        )
    return hints
