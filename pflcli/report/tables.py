"""Tables of an evaluation, as rows for a terminal and as Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = {
    "accuracy": "accuracy",
    "accuracy_mean": "plain mean",
    "bottom_decile": "bottom decile",
    "accuracy_seen": "seen",
    "accuracy_unseen": "unseen",
    "worst": "worst",
    "accuracy_std": "std",
    "macro_precision": "macro prec.",
    "macro_precision_mean": "plain macro prec.",
    "calibration_error": "ECE",
    "gain": "gain",
    "better_off": "better off (chance)",
    "worse_off": "worse off (chance)",
    "megabytes": "MB sent",
    "seconds": "seconds",
    "reported_round": "best round",
    "rounds_to_target": "rounds to {}",
    "seconds_to_target": "seconds to {}",
    "megabytes_to_target": "MB to {}",
    "exchanges_to_target": "models to {}",
}
"""Metrics in the order of the table, with their headings."""

MARK = "*"
"""What marks a share of clients that is more than chance gives."""

_PERCENT = {
    "accuracy", "accuracy_mean", "bottom_decile", "worst", "accuracy_std", "macro_precision", "macro_precision_mean",
    "calibration_error", "gain", "better_off", "worse_off", "accuracy_seen", "accuracy_unseen",
}  # fmt: skip


COMPARED = (
    "accuracy", "accuracy_mean", "bottom_decile", "worst", "accuracy_seen", "accuracy_unseen", "gain", "better_off",
    "worse_off", "macro_precision", "macro_precision_mean", "megabytes", "seconds", "reported_round",
    "rounds_to_target", "seconds_to_target", "megabytes_to_target", "exchanges_to_target",
)  # fmt: skip
"""Columns of a comparison."""

OF = {"evaluation": tuple(COLUMNS), "comparison": COMPARED}
"""Columns by the kind of the artifact."""


def rows(metrics: Mapping[str, Any], columns: Sequence[str] = tuple(COLUMNS)) -> tuple[list[str], list[list[str]]]:
    """Return the heading and a row a method of the stored ``metrics``."""
    used = [name for name in columns if any(name in method["metrics"] for method in metrics["methods"])]
    target = f"{100 * metrics['target']:g} %" if "target" in metrics else ""
    titles = [COLUMNS[name].format(target) + (" %" if name in _PERCENT else "") for name in used]
    heading = ["method", "seeds", *titles]
    body = [
        [
            method["label"],
            str(len(method["seeds"])),
            *(_cell(name, method["metrics"].get(name)) for name in used),
        ]
        for method in metrics["methods"]
    ]
    return heading, body


def comma_separated(metrics: Mapping[str, Any]) -> str:
    """Return every number of the stored ``metrics`` in its own unit, a row a method, as CSV."""
    names = list(dict.fromkeys(name for method in metrics["methods"] for name in method["metrics"]))
    body: list[dict[str, Any]] = []
    for method in metrics["methods"]:
        row: dict[str, Any] = {"method": method["label"], "seeds": len(method["seeds"])}
        for name in names:
            metric = method["metrics"].get(name, {})
            row[name], row[f"{name}_std_over_seeds"] = metric.get("value"), metric.get("std_over_seeds")
            if name == "rounds_to_target":
                row["seeds_to_target"] = metric.get("n")
            if name == "gain":
                row["gain_low"], row["gain_high"] = metric.get("interval") or (None, None)
            if name in ("better_off", "worse_off"):
                row[f"{name}_by_chance"] = metric.get("by_chance")
                row[f"{name}_by_chance_high"] = metric.get("by_chance_high")
        body.append(row)
    known = [name for name in body[0] if any(row[name] is not None for row in body)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(known)
    writer.writerows([_raw(row[name]) for name in known] for row in body)
    return text.getvalue()


def _raw(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _cell(name: str, metric: Mapping[str, Any] | None) -> str:
    if metric is None or metric["value"] is None or math.isnan(metric["value"]):
        return "-"
    scale = 100 if name in _PERCENT else 1
    value, spread = metric["value"] * scale, metric.get("std_over_seeds")
    sign = "+" if name == "gain" and value > 0 else ""
    text = f"{sign}{value:.1f}"
    if name == "gain" and metric.get("interval"):
        low, high = (bound * scale for bound in metric["interval"])
        return f"{text} [{low:+.1f}, {high:+.1f}]"
    if "by_chance" in metric:
        return f"{text}{MARK if metric['exceeds_chance'] else ''} ({scale * metric['by_chance']:.1f})"
    some = f" ({metric['n']} of {metric['of']})" if "of" in metric and metric["n"] < metric["of"] else ""
    return (f"{text} ± {spread * scale:.1f}" if spread else text) + some


def markdown(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is left-aligned, numbers to the right."""
    align = ["---", *["---:"] * (len(heading) - 1)]
    lines = [heading, align, *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
