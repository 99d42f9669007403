"""Warn of runs that did not learn: they predict one class for all samples, or their loss grew instead of falling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.core.wording import listed
from pflcli.evaluation.summary import ScoredPredictions

CONSTANT = "constant"
"""The method that predicts each client's most frequent training class."""
_LARGE_LOSS = 10.0
"""A training loss above this many times that of equal probabilities, log C, means that training diverged."""


def find_warnings(groups: Mapping[str, Sequence[ScoredPredictions]]) -> list[str]:
    """Return a warning per way of failing that names the methods of which a run did not learn.

    ``groups`` has a run per seed. A run did not learn if it predicts one class for all samples although they have
    several, if its training loss in the last round is far above that of equal probabilities, or if its log-loss is
    above it and its accuracy is not above that of the most frequent class.
    """
    failures: dict[str, dict[str, str]] = {}
    for label, items in groups.items():
        for item in reversed(items):  # the first failed seed is named
            if failure := _describe_failure(item):
                what, detail = failure
                under = f" under seed {item.seed}" if len(items) > 1 else ""
                failures.setdefault(what, {})[label] = f"`{label}` ({detail}{under})"
    return [
        f"{what}: {listed([*named.values()])}; a smaller --lr or more --rounds may help"
        for what, named in failures.items()
    ]


def find_below_constant(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning that names the methods whose accuracy is not above that of ``constant``, if a row has it."""
    known = [row for row in rows if row["metrics"]["accuracy"]["value"] is not None]
    accuracy = {row["label"]: row["metrics"]["accuracy"]["value"] for row in known}
    constant = next((row["label"] for row in known if row.get("method") == CONSTANT), None)
    if constant is None:
        return []
    below = [row["label"] for row in known if not row.get("reference") and accuracy[row["label"]] <= accuracy[constant]]
    if not below:
        return []
    names = listed([f"`{label}` ({100 * accuracy[label]:.1f} %)" for label in below])
    return [
        f"not above `{constant}`, each client's most frequent class ({100 * accuracy[constant]:.1f} %): {names}; what "
        "was learned from the samples does not help: more --rounds, or another --lr by pfl tune, may"
    ]


def _describe_failure(item: ScoredPredictions) -> tuple[str, str] | None:
    """Return what shows that the training of a run failed, and its numbers; None if nothing does."""
    present, predicted, hits = item.counts.sum(axis=0)
    if (present > 0).sum() > 1 and (predicted > 0).sum() == 1:
        name = item.class_names[int(predicted.argmax())]
        return "predicts one class for all samples", f"class {name} for {present.sum()} samples"
    uniform, losses = math.log(len(present)), item.losses
    if losses and losses[-1] > _LARGE_LOSS * uniform:
        what = f"ended with a training loss far above that of equal probabilities, {uniform:.2g}"
        return what, f"{losses[-1]:.2g}"
    log_loss = item.pool()["log_loss"]
    if log_loss > uniform and hits.sum() <= present.max() and (present > 0).sum() > 1:
        what = "is not more accurate than the most frequent class, and has a log-loss above that of equal probabilities"
        return f"{what}, {uniform:.2g}", f"{log_loss:.2g}"
    return None
