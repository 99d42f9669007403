"""From what stands in a file to samples that can be learned from: missing values, classes, scale."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import Column, Like, Raw, given_split, in_time, is_number, is_storable, ordered, spelled
from pflcli.errors import InputError, UsageError

_LARGEST = float(np.finfo(np.float32).max)
_MOST_INTEGERS, _FEWEST_SAMPLES = 20, 10
"""A target of more distinct integers than this, with fewer samples of each on average, is taken for a quantity."""
_EXACT = 2**24
"""Up to here float32 tells all integers apart."""


@dataclass(frozen=True)
class Clean:
    """Samples that were checked; see ``artifacts.dataset`` for shapes. ``x`` has gaps if they are to be filled in.

    With ``is_ordered``, samples that were recorded earlier stand before later ones.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    owner: NDArray[np.str_] | None
    classes: list[str]
    columns: tuple[Column, ...]
    features: tuple[str, ...]
    dropped: int
    remarks: tuple[str, ...]
    split: NDArray[np.int8] | None = None
    group: NDArray[np.int64] | None = None
    is_ordered: bool = False


def cleaned(
    raw: Raw,
    name: str,
    *,
    missing: str = "error",
    standardize: bool = False,
    like: Like | None = None,
    integers_are_classes: bool = False,
) -> Clean:
    """Check ``raw``, called ``name`` in errors, and return it with classes as numbers.

    ``missing``: "error" refuses a missing value, "drop" leaves its sample out, "median" leaves it to be filled in, with
    one more feature per column that says where it was missing. Features are float32, or float64 where they are still to
    be filled in or, with ``standardize``, brought to one scale. Classes and columns are those of ``like``, if given.
    ``integers_are_classes``: see ``classes_of``.
    Raises InputError that says where the first bad value stands.
    """
    raw.require_same_length(name)
    x, owner = raw.x, raw.owner
    pictures = x.dtype == np.uint8 and x.ndim > 2
    if pictures and standardize:
        raise UsageError("--standardize is for features; pixels are scaled to [0, 1] anyway", "leave it out")
    if not pictures and x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    _require_storable(raw, name)
    lost = _gaps(raw, x, missing)
    rows = np.flatnonzero(~lost)
    if not len(rows):
        raise InputError(f"{name}: every sample lacks a value", *_blamed(raw, x, lost))
    if "order" in raw.beside:
        times = raw.beside["order"][rows]
        rows = rows[in_time.sorted_rows(times, lambda at: raw.place(int(rows[at]), "order", ()))]
    bounded(x, raw, set(rows.tolist()) if len(rows) < len(x) else None)
    y, classes = classes_of(raw, rows, like, integers_are_classes=integers_are_classes)
    split, group = _split(raw, rows, name), _group(raw, rows)
    remarks = [*raw.remarks, *_losses(raw, x, lost)]
    if len(rows) < len(x) or "order" in raw.beside:
        x, owner = x[rows], None if owner is None else owner[rows]
    remarks += [f"'{name}' numbers the samples: --features without it?" for name in _counters(x, raw.columns)]
    if not pictures and not standardize:
        remarks += _hints(x, raw.columns)
    columns = raw.columns
    if missing == "median" and not pictures:
        x, columns = with_gaps(x, columns, like)
        remarks += [_filled(columns)] if any(column.gaps for column in columns) else []
        x = x.astype(np.float64)
    if not (standardize or missing == "median"):
        x = x.astype(np.uint8 if pictures else np.float32, copy=False)
    features = [
        feature for column in columns for feature in [*column.features, *[f"{column.name} missing"] * column.gaps]
    ]
    return Clean(
        x,
        y,
        owner,
        classes,
        columns,
        tuple(features),
        int(lost.sum()),
        tuple(remarks),
        split,
        group,
        "order" in raw.beside,
    )


def _require_storable(raw: Raw, name: str) -> None:
    """Raise InputError for names of clients, classes or columns that no file can hold: see ``is_storable``."""
    by_role = {"label": raw.label, **({} if raw.owner is None else {"client": raw.owner})}
    for role, names in by_role.items():
        unusable = [each for each in np.unique(names).tolist() if not is_storable(each)]
        if unusable:
            row = int(np.flatnonzero(names == unusable[0])[0])
            raise InputError(f"{raw.place(row, role, ())}: the name {unusable[0]!a} cannot be stored", _RENAME)
    for each in [column.name for column in raw.columns] + list(raw.classes or ()):
        if not is_storable(each):
            raise InputError(f"{name}: the name {each!a} cannot be stored", _RENAME)


_RENAME = "rename it: NUL and halves of surrogate pairs are not text"


def _split(raw: Raw, rows: NDArray[np.int64], name: str) -> NDArray[np.int8] | None:
    """Return what each of ``rows`` is for, if the file says it."""
    if "split" not in raw.beside:
        return None
    owner = None if raw.owner is None else raw.owner[rows]
    return given_split.numbered(
        raw.beside["split"][rows], owner, lambda at: raw.place(int(rows[at]), "split", ()), name
    )


def _group(raw: Raw, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return a number for each of ``rows``, the same for those that belong together, if the file says it."""
    if "group" not in raw.beside:
        return None
    return np.unique(raw.beside["group"][rows], return_inverse=True)[1].astype(np.int64)


def _gaps(raw: Raw, x: NDArray[np.float64], missing: str) -> NDArray[np.bool_]:
    """Return which samples (n,) are left out as they lack a value; raises InputError at the first if none may be."""
    holes = {
        "client": None if raw.owner is None else raw.owner == "",
        "label": raw.label == "",
    } | {role: words == "" for role, words in raw.beside.items()}
    if x.dtype.kind == "f" and missing != "median":
        holes["features"] = np.isnan(x.reshape(len(x), -1)).any(axis=1)
    known = {role: hole for role, hole in holes.items() if hole is not None}
    lost: NDArray[np.bool_] = np.logical_or.reduce(list(known.values()))
    if missing != "drop" and lost.any():
        row = int(np.argmax(lost))
        role = next(role for role, hole in known.items() if hole[row])
        at = np.argwhere(np.isnan(x[row]))[0].tolist() if role == "features" else []
        count = f"{lost.sum()} of {len(lost)} samples lack a value"
        ways = "--missing median fills it in" if role == "features" else "no median stands for it; fill it in"
        raise InputError(
            f"{raw.place(row, role, at)}: no value", f"{count}; {ways}, or --missing drop leaves the samples out"
        )
    return lost


def _shares(raw: Raw, x: NDArray[np.float64]) -> dict[str, float]:
    """Return the share of samples in which each column of a table lacks a value, the largest first."""
    if not raw.columns or x.dtype.kind != "f":
        return {}
    first = np.cumsum([0, *(len(column.features) for column in raw.columns[:-1])])
    shares = {column.name: float(np.isnan(x[:, at]).mean()) for column, at in zip(raw.columns, first, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _blamed(raw: Raw, x: NDArray[np.float64], lost: NDArray[np.bool_]) -> list[str]:
    """Return what to do about columns that cost many samples."""
    worst = [f"{name} {100 * share:.0f} %" for name, share in _shares(raw, x).items() if share >= 0.1][:4]
    if not worst or lost.mean() < 0.1:
        return []
    return [
        f"missing most often: {', '.join(worst)}",
        "--features without these columns, or --missing median, keeps more",
    ]


def _losses(raw: Raw, x: NDArray[np.float64], lost: NDArray[np.bool_]) -> list[str]:
    """Return what it costs to leave samples out: how many, whose, and for which columns."""
    if not lost.any():
        return []
    lines = [f"{lost.sum()} of {len(lost)} samples lack a value and are left out"]
    if raw.owner is not None:
        names, of = np.unique(raw.owner, return_inverse=True)
        sizes, dropped = np.bincount(of), np.bincount(of, weights=lost).astype(int)
        losers = [at for at in np.argsort(-dropped / sizes, kind="stable") if 2 * dropped[at] > sizes[at] and names[at]]
        losses = [
            f"{names[at]} {'all' if dropped[at] == sizes[at] else f'{dropped[at]} of'} {sizes[at]}" for at in losers
        ]
        if losses:
            more = f", ... ({len(losses)} clients in all)" if len(losses) > 8 else ""
            lines.append(f"WARNING: clients lose most of their samples: {', '.join(losses[:8])}{more}")
    return lines + _blamed(raw, x, lost)


def with_gaps(
    x: NDArray[np.float64], columns: tuple[Column, ...], like: Like | None
) -> tuple[NDArray[np.float64], tuple[Column, ...]]:
    """Return features (n, ..., d + gaps) and columns with one more feature behind each column that lacks values.

    It is 1 where the value is missing. Columns of ``like`` have it where they had it there.
    """
    flat = np.isnan(x).reshape(-1, x.shape[-1])
    names = {2: "feature", 3: "channel"}
    known = columns or tuple(Column(f"{names.get(x.ndim, 'feature')} {at}") for at in range(x.shape[-1]))
    fixed = {column.name: column.gaps for column in like.columns} if like else {}
    pieces, marked, at = [], [], 0
    for column in known:
        width = len(column.features)
        gaps = fixed.get(column.name, False) if fixed else bool(flat[:, at : at + width].any())
        pieces.append(x[..., at : at + width])
        if gaps:
            pieces.append(np.isnan(x[..., at : at + 1]).astype(np.float64))
        marked.append(replace(column, gaps=gaps))
        at += width
    if not columns and not any(column.gaps for column in marked):
        return x, ()
    return np.concatenate(pieces, axis=-1), tuple(marked)


def _filled(columns: tuple[Column, ...]) -> str:
    names = [column.name for column in columns if column.gaps]
    listed = ", ".join(names[:10]) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")
    return f"filled in by `pfl partition`, with a feature that says where: {listed}"


def bounded(x: NDArray[np.float64], raw: Raw, rows: set[int] | None) -> None:
    """Raise InputError at the first value, among ``rows`` if given, that float32 cannot hold."""
    if x.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore"):
        if not (np.nanmax(x, initial=0) > _LARGEST or np.nanmin(x, initial=0) < -_LARGEST):
            return
    for row, *at in np.argwhere(np.abs(x) > _LARGEST).tolist():
        if rows is None or row in rows:
            value = x[(row, *at)]
            problem = "is not finite" if np.isinf(value) else "is too large for float32"
            raise InputError(
                f"{raw.place(row, 'features', at)}: {value:g} {problem}", "repair it, or leave the row out"
            )


def classes_of(
    raw: Raw, rows: NDArray[np.int64], like: Like | None, *, integers_are_classes: bool = False
) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels 0..C-1 (n,) of ``rows`` and the names of classes: of ``like``, else of the file, else in order.

    1 and 1.0 are the same class. Raises InputError for fractions, for a class that is not known, and where there is but
    one class, which is enough for data that are like others. Raises it also for more than 20 distinct integers with
    fewer than 10 samples each on average, which look like a quantity; not with ``integers_are_classes``, nor where
    ``like`` or the file declares the classes.
    """
    words = spelled(raw.label[rows])

    def place(bad: NDArray[np.bool_]) -> str:
        return raw.place(int(rows[np.argmax(bad)]), "label", ())

    if raw.classes and not np.isin(words, raw.classes).all():
        numbers = np.asarray([int(word) if re.fullmatch("[0-9]{1,9}", word) else -1 for word in words.tolist()])
        bad = (numbers < 0) | (numbers >= len(raw.classes))
        if bad.any():
            raise InputError(
                f"{place(bad)}: '{words[np.argmax(bad)]}' is neither one of 'classes' nor the number of one, "
                f"0 to {len(raw.classes) - 1}"
            )
        words = np.asarray(raw.classes)[numbers]
    classes = list((like.classes if like else ()) or raw.classes)
    if not classes:
        classes = ordered(words.tolist())
        if all(is_number(word) for word in classes) and not all(float(word).is_integer() for word in classes):
            bad = np.asarray([not float(word).is_integer() for word in words.tolist()])
            raise InputError(
                f"{place(bad)}: {words[np.argmax(bad)]} is a quantity, and pfl learns classes",
                "cut it into classes first, such as low and high",
            )
        if not integers_are_classes:
            _require_few_integers(classes, len(words), place(np.ones(len(words), np.bool_)))
    bad = ~np.isin(words, classes)
    if bad.any():
        raise InputError(
            f"{place(bad)}: '{words[np.argmax(bad)]}' is not among the classes of {like.name if like else 'the file'}: "
            f"{', '.join(classes[:10])}",
            "give it the word that it has there; a new class needs new training",
        )
    if not (like and like.classes) and len(np.unique(words)) == 1:
        raise InputError(
            f"{place(np.ones(len(words), np.bool_))}: every label is '{words[0]}', so there is nothing to learn",
            "choose another --label",
        )
    order = {word: number for number, word in enumerate(classes)}
    return np.asarray([order[word] for word in words.tolist()], dtype=np.int64), classes


def _require_few_integers(classes: list[str], samples: int, place: str) -> None:
    """Raise InputError if the target looks like a quantity: many distinct integers with few samples each.

    ``place`` is where the first of them stands.
    """
    if len(classes) <= _MOST_INTEGERS or samples >= _FEWEST_SAMPLES * len(classes):
        return
    if all(is_number(word) for word in classes):
        raise InputError(
            f"{place}: the label has {len(classes)} distinct integers in {samples} samples, which looks like a "
            "quantity, and pfl learns classes",
            "cut it into classes first, such as low and high",
            "if each integer is a class: --classes",
        )


def _counters(x: NDArray[np.float64], columns: tuple[Column, ...]) -> list[str]:
    """Return the columns that hold each of n consecutive integers once: nothing to learn from."""
    names = [feature for column in columns for feature in column.features]
    return [
        name
        for at, name in enumerate(names)
        if len(x) > 2 and x[:, at].max() - x[:, at].min() == len(x) - 1 and np.all(np.diff(np.sort(x[:, at])) == 1)
    ]


def _hints(x: NDArray[np.float64], columns: tuple[Column, ...]) -> list[str]:
    """Return what a user may want to know of features that are taken as they are."""
    names = [feature for column in columns for feature in column.features]
    names = names or [f"feature {i}" for i in range(x.shape[-1])]
    flat = np.nan_to_num(x.reshape(-1, x.shape[-1]), nan=0.0)
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
