"""The table of prediction sets, and the sentences below it, from the stored ``sets`` of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.evaluation.presentation.tables import Table
from pflcli.wording import counted, listed

_NAMED = 10
"""So many clients are named; ``sets_clients.csv`` has all."""


def title(metrics: Mapping[str, Any]) -> str:
    """Return the heading of the table."""
    return f"Prediction sets at coverage {_percent(metrics['sets']['coverage'])} %, calibrated on validation samples"


def table(metrics: Mapping[str, Any]) -> Table:
    """Return a row for each method and threshold, methods in the order of the table of scores."""
    heading = ["method", "threshold", "coverage %", "bottom decile %", "set size", "clients with full sets"]
    by_label = metrics["sets"]["methods"]
    rows = []
    for label in (row["label"] for row in metrics["methods"] if row["label"] in by_label):
        seeds = max(1, len(by_label[label]["too_few_samples"]))
        for rule, entry in by_label[label]["thresholds"].items():
            full = entry["infinite_thresholds"]
            rows.append(
                [
                    label,
                    rule,
                    _cell(entry["coverage"], 100, 1),
                    _cell(entry["coverage_bottom_decile"], 100, 1),
                    _cell(entry["set_size"], 1, 2),
                    "-" if full["value"] is None else f"{full['value']:g} of {round(full['n'] / seeds)}",
                ]
            )
    return Table(heading, rows, ["clients with full sets"])


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return sentences on clients with too few samples, and on methods that chose by the samples that calibrate."""
    if "sets" not in metrics:
        return []
    sets = metrics["sets"]
    chosen = [label for label, method in sets["methods"].items() if method.get("chose_on_validation")]
    chosen = [*sets["methods"]] if "tune" in metrics else chosen
    lines = _too_few(sets)
    if chosen:
        lines.append(
            f"{listed(chosen)} also chose on the validation samples that calibrate prediction sets, so coverage on test"
            " samples can be slightly below the level"
        )
    return lines


def _too_few(sets: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each group of clients with too few samples; most often all runs have the same."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for label, method in sets["methods"].items():
        for seed, names in method["too_few_samples"].items():
            groups.setdefault(tuple(names), []).append(f"{label} seed {seed}")
    lines = []
    for names, runs in groups.items():
        if not names:
            continue
        where = "" if len(groups) == 1 else f" ({_shortened(runs, 'run')})"
        lines.append(
            f"own threshold at coverage {_percent(sets['coverage'])} %: {counted(len(names), 'client')} with fewer than"
            f" {counted(sets['fewest_samples'], 'validation sample')}, whose sets contain all classes"
            f"{where}: {_shortened(names, 'client')}"
        )
    return lines


def _shortened(names: Sequence[str], noun: str) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {counted(more, f'other {noun}')}" if more > 0 else "")


def _percent(share: float) -> str:
    return f"{100 * share:.6g}"


def _cell(metric: Mapping[str, Any], scale: float, digits: int) -> str:
    if metric["value"] is None:
        return "-"
    spread = metric.get("std_over_seeds")
    text = f"{scale * metric['value']:.{digits}f}"
    return f"{text} ± {scale * spread:.{digits}f}" if spread else text
