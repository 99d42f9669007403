"""What the chosen metrics mean for these classes, and for how many clients they are not defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.evaluation.metrics import catalogue

_ONE_AGAINST_REST = {"auroc", "average_precision"}


def remarks(
    methods: Sequence[Mapping[str, Any]], metrics: Sequence[str], classes: Sequence[str], positive: int = 1
) -> list[str]:
    """Return sentences on the chosen ``metrics``, from the rows of ``methods`` and the names of all classes.

    Of two classes, ``positive`` is the positive one.
    """
    lines = []
    entries = [catalogue.METRICS[name] for name in metrics]
    if len(classes) == 2 and any(metric.of_positive is not None for metric in entries):
        lines.append(f"the positive class is {classes[positive]}")
    against = [metric.heading for metric in entries if metric.name in _ONE_AGAINST_REST]
    if len(classes) > 2 and against:
        lines.append(f"{' and '.join(against)}: mean over the classes that a client has, each against all others")
    if entries[0].lower_is_better:
        lines.append(f"a gain is by how much lower the {entries[0].heading} is")
    for metric in entries:
        n, of = max(((r["n"], r.get("of", r["n"])) for r in (m["metrics"][metric.name] for m in methods)), key=sum)
        if n < of:
            seeds = max(len(method["seeds"]) for method in methods)
            together = f" ({seeds} seeds together)" if seeds > 1 else ""
            lines.append(
                f"{metric.heading} is not defined for {of - n} of {of} clients{together}, which lack {metric.needs} and"
                " are left out"
            )
    return lines
