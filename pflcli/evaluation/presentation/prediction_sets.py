"""The table of prediction sets and the notes below it, from the stored ``sets`` of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.core.wording import counted, listed
from pflcli.evaluation.presentation.tables import Table

_MAX_NAMES = 10
"""Maximum number of clients named in a note; ``sets_clients.csv`` has all."""


def title(metrics: Mapping[str, Any]) -> str:
    """Return the heading of the table."""
    level = _format_percent(metrics["sets"]["coverage"])
    what = "intervals" if _are_intervals(metrics["sets"]) else "sets"
    return f"Prediction {what} at coverage {level} %, calibrated on validation samples"


def _are_intervals(sets: Mapping[str, Any]) -> bool:
    """Return whether the sets are intervals of numbers."""
    return bool(sets["score"] != "1 - p(label)")


def table(metrics: Mapping[str, Any]) -> Table:
    """Return a table with a row per method and threshold, methods in the order of the table of scores."""
    heading = ["method", "threshold", "coverage %", "bottom decile %", "set size", "clients with full sets"]
    if _are_intervals(metrics["sets"]):
        heading[4:] = [f"width{unit_of(metrics)}", "clients with infinite intervals"]
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
                    _format_cell(entry["coverage"], 100, 1),
                    _format_cell(entry["coverage_bottom_decile"], 100, 1),
                    _format_size(entry["set_size"], metrics["sets"]),
                    "-" if full["value"] is None else f"{full['value']:g} of {round(full['n'] / seeds)}",
                ]
            )
    return Table(heading, rows, [heading[-1]])


def unit_of(metrics: Mapping[str, Any]) -> str:
    """Return the unit of labels in brackets, with a space before it; empty if they have none."""
    return f" ({metrics['unit']})" if "unit" in metrics else ""


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return notes on clients with too few samples, and on methods that chose values on the calibration samples."""
    if "sets" not in metrics:
        return []
    sets = metrics["sets"]
    chosen = {label: method for label, method in sets["methods"].items() if method.get("chose_on_validation")}
    lines = _describe_small_clients(sets)
    if chosen:
        lines.append(
            f"{listed([*chosen])} also chose on the validation samples that calibrate prediction sets, so the level is"
            " not guaranteed: coverage on test samples can be points below it, the more so the more models were tried"
            " and the fewer samples calibrate (docs/measurement.md)"
        )
    bounds = [
        f"{label} {100 * method['least_coverage']['own']:.1f} % and {100 * method['least_coverage']['pooled']:.1f} %, "
        f"chosen from {counted(method['models_tried'], 'model')}"
        for label, method in chosen.items()
        if "models_tried" in method
    ]
    if bounds:
        lines.append(f"least mean coverage with own and with pooled thresholds: {'; '.join(bounds)}")
    return lines


def _describe_small_clients(sets: Mapping[str, Any]) -> list[str]:
    """Return a note for each set of clients with too few samples; usually all runs have the same set."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for label, method in sets["methods"].items():
        for seed, names in method["too_few_samples"].items():
            groups.setdefault(tuple(names), []).append(f"{label} seed {seed}")
    lines = []
    for names, runs in groups.items():
        if not names:
            continue
        where = "" if len(groups) == 1 else f" ({_list_first(runs, 'run')})"
        lines.append(
            f"own threshold at coverage {_format_percent(sets['coverage'])} %: {counted(len(names), 'client')} with "
            f"fewer than {counted(sets['fewest_samples'], 'validation sample')}, whose "
            f"{'intervals are infinite' if _are_intervals(sets) else 'sets contain all classes'}"
            f"{where}: {_list_first(names, 'client')}"
        )
    return lines


def _list_first(names: Sequence[str], noun: str) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {counted(more, f'other {noun}')}" if more > 0 else "")


def _format_percent(share: float) -> str:
    return f"{100 * share:.6g}"


def _format_size(metric: Mapping[str, Any], sets: Mapping[str, Any]) -> str:
    """Return a number of classes, or the width of intervals to four digits."""
    size = metric["value"]
    is_known = _are_intervals(sets) and size is not None and size > 0
    return _format_cell(metric, 1, min(max(3 - math.floor(math.log10(size)), 0), 6) if is_known else 2)


def _format_cell(metric: Mapping[str, Any], scale: float, digits: int) -> str:
    if metric["value"] is None or math.isnan(metric["value"]):
        return "-"
    spread = metric.get("std_over_seeds")
    text = f"{scale * metric['value']:.{digits}f}"
    return f"{text} ± {scale * spread:.{digits}f}" if spread else text
