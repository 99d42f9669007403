"""Splits that a user's file defines: train, validation or test for each sample."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError, UsageError
from pflcli.data.formats import ABSENT, RawSamples, Roles, option

_WORDS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip


def find_split(word: str) -> str | None:
    """Return train, validation or test for a word that names a split in any case, such as Dev; None for others."""
    return _WORDS.get(re.sub("[^a-z]*(sets?|data|splits?)?$", "", word.lower()))


def find_splits(names: Iterable[str]) -> dict[str, str]:
    """Return the splits that names stand for, such as those of folders; none unless training and other samples are.

    What all names share is no part of them, as in ``mitbih_train`` and ``mitbih_test``.
    """
    parts = {name: re.findall("[a-z]+|[^a-z]+", name.lower()) for name in dict.fromkeys(names)}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    found = {name: find_split("".join(part for part in each if part not in shared)) for name, each in parts.items()}
    splits = {name: split for name, split in found.items() if split}
    return splits if "train" in splits.values() and len({*splits.values()}) > 1 else {}


def require_no_splits(raw: RawSamples, roles: Roles) -> None:
    """Raise InputError for clients, classes or words of a column that are named like splits, unless splits are given.

    ``--split-column none`` says that they are none.
    """
    if roles.split is not None or "split" in raw.metadata:
        return
    client, label = raw.names.get("client"), raw.names.get("label")
    known = [
        (
            Counter(raw.label.tolist()),
            "classes",
            f"--split-column {label}, and another --label" if label else "SPLIT/LABEL/IMAGE",
        )
    ]
    if raw.owner is not None:
        typed = "--client none" + (f" --split-column {client}" if client else "")
        known.insert(0, (Counter(raw.owner.tolist()), "clients", typed))
    at = 0
    for each in raw.columns:
        hot = raw.x[:, at : at + len(each.words)]
        at += len(each.features)
        counts = Counter(dict(zip(each.words, np.nansum(hot, axis=0).astype(int).tolist(), strict=True)))
        known.append((counts, f"words of '{each.name}'", f"--split-column {each.name}"))
    for count_of, what, typed in known:
        found = ", ".join(f"'{name}' ({count_of[name]})" for name in find_splits(sorted(count_of)))
        if found:
            raise InputError(
                f"the {what} are named like splits: {found}", f"if they are: {typed}", "if not: --split-column none"
            )


def add_splits(raw: RawSamples, words: NDArray[np.str_], roles: Roles, name: str) -> RawSamples:
    """Return samples with the splits (n,) that their folders or files give; ``--split-column none`` joins them.

    Raises UsageError if another role defines the splits.
    """
    if roles.split == ABSENT:
        return raw
    if roles.splitting:
        typed = option(next(iter(roles.splitting)))
        raise UsageError(f"{typed} contradicts the splits of {name}: both define the splits", "--split-column none")
    return replace(raw, metadata={**raw.metadata, "split": words})


def parse_splits(raw: RawSamples, rows: NDArray[np.int64], name: str) -> NDArray[np.int8]:
    """Return the number of the split of each of ``rows``, (n,): 0 train, 1 validation, 2 test.

    Raises InputError, with the place of the first unknown word, or with the file's ``name`` if there are no training or
    no test samples, or a client has no training samples.
    """
    words = raw.metadata["split"][rows]
    split_of = {word: find_split(word) for word in np.unique(words).tolist()}
    is_unknown = np.isin(words, [word for word, split in split_of.items() if split is None])
    if is_unknown.any():
        at = int(np.argmax(is_unknown))
        raise InputError(
            f"{raw.place(int(rows[at]), 'split', ())}: '{words[at]}' is not one of {', '.join(SPLITS)}",
            "write train, validation or test",
        )
    splits = np.asarray([SPLITS.index(str(split_of[word])) for word in words.tolist()], dtype=np.int8)
    for split in ("train", "test"):
        if not (splits == SPLITS.index(split)).any():
            raise InputError(f"{name} has no {split} samples", "leave out --split-column to split at random")
    if raw.owner is not None:
        owner = raw.owner[rows]
        untrained = sorted(set(owner.tolist()) - set(owner[splits == 0].tolist()))
        if untrained:
            more = f" (and {len(untrained) - 1} more clients)" if len(untrained) > 1 else ""
            raise InputError(
                f"{name}: client '{untrained[0]}' has no training samples{more}",
                "give each client one, or leave such clients out",
            )
    return splits


_MAX_LEAK = 0.5
"""Maximum share of samples for validation and test that are also training samples."""


def require_separate(raw: RawSamples, name: str) -> RawSamples:
    """Return ``raw`` with a warning if given splits share samples, that is, if features and label are the same.

    Few such samples may be different ones with equal values. Raises InputError, with two places, if more than half of
    the samples for validation and test are also training samples, unless training samples are as often the same.
    """
    if "split" not in raw.metadata or len({len(raw.x), len(raw.label), len(raw.metadata["split"])}) > 1:
        return raw
    splits = np.asarray([find_split(word) for word in raw.metadata["split"].tolist()], dtype=np.object_)
    digests = [digest + label.encode() for digest, label in zip(raw.hash_features(), raw.label.tolist(), strict=True)]
    trained: dict[bytes, int] = {}
    twins = 0
    for row in np.flatnonzero(splits == "train").tolist():
        twins += trained.setdefault(digests[row], row) != row
    judged = np.flatnonzero((splits == "validation") | (splits == "test")).tolist()
    leaks = [row for row in judged if digests[row] in trained]
    remarks = []
    if leaks:
        first, second = (raw.place(row, "features", (0,)) for row in (leaks[0], trained[digests[leaks[0]]]))
        message = (
            f"{len(leaks)} of {len(judged)} samples for validation and test are also training samples, such as "
            f"{first} and {second}"
        )
        share = len(leaks) / len(judged)
        if share > _MAX_LEAK and twins / max(1, (splits == "train").sum()) < share / 2:
            raise InputError(f"{name}: {message}", "split the samples again, each into one split")
        remarks.append(f"WARNING: {message}")
    return replace(raw, remarks=(*raw.remarks, *remarks))
