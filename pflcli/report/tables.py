"""Tables of an evaluation, as rows for a terminal and as Markdown."""

from __future__ import annotations

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
    "calibration_error": "ECE",
    "gain": "gain",
    "better_off": "better off",
    "worse_off": "worse off",
    "megabytes": "MB sent",
    "seconds": "seconds",
}
"""Metrics in the order of the table, with their headings."""

_PERCENT = {
    "accuracy", "accuracy_mean", "bottom_decile", "worst", "accuracy_std", "macro_precision", "calibration_error",
    "gain", "better_off", "worse_off", "accuracy_seen", "accuracy_unseen",
}  # fmt: skip


def rows(metrics: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and a row a method of the stored ``metrics``."""
    used = [name for name in COLUMNS if any(name in method["metrics"] for method in metrics["methods"])]
    heading = ["method", "seeds", *(COLUMNS[name] + (" %" if name in _PERCENT else "") for name in used)]
    body = [
        [
            method["label"],
            str(len(method["seeds"])),
            *(_cell(name, method["metrics"].get(name)) for name in used),
        ]
        for method in metrics["methods"]
    ]
    return heading, body


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
    return f"{text} ± {spread * scale:.1f}" if spread else text


def markdown(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is left-aligned, numbers to the right."""
    align = ["---", *["---:"] * (len(heading) - 1)]
    lines = [heading, align, *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
