"""Tables of an evaluation, as rows for a terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pflcli.evaluation.metrics import catalogue
from pflcli.evaluation.metrics.metric import Metric

MARK = "*"
"""What marks a share of clients that is more than chance gives."""

_FEW = 10
"""With so many clients the bottom decile is the worst client; only one of them is shown."""

KINDS = ("evaluation", "comparison")
"""The kinds of artifacts that have a table."""


class Table(NamedTuple):
    """Headings, rows of cells, and the headings of columns that a narrow terminal leaves out, first to go first."""

    heading: list[str]
    rows: list[list[str]]
    gives_way: list[str]

    def markdown(self) -> str:
        """Return the table as Markdown; the first column is left-aligned, numbers to the right."""
        align = ["---", *["---:"] * (len(self.heading) - 1)]
        return "".join("| " + " | ".join(line) + " |\n" for line in [self.heading, align, *self.rows])


def of(metrics: Mapping[str, Any], kind: str = "evaluation", columns: Sequence[str] | None = None) -> Table:
    """Return the table of the stored ``metrics``, a row per method, with ``columns``, or else those of the ``kind``."""
    methods = metrics["methods"]
    metric_names = _metric_names(metrics)
    used = shown(metrics, catalogue.columns(kind, metric_names) if columns is None else columns)
    worst = catalogue.part(metric_names[0], "worst")
    target = f"{100 * metrics['target']:g} %" if "target" in metrics else ""
    link = metrics.get("link", "")
    entries = {name: _form(name, metric_names) for name in used}
    titles = {
        name: entry.heading.format(target=target, link=link) + (" %" if entry.percent else "")
        for name, entry in entries.items()
    }
    body = [
        [
            method["label"],
            str(len(method["seeds"])),
            *(_cell(entry, method["metrics"].get(name)) for name, entry in entries.items()),
        ]
        for method in methods
    ]
    spare = [name for name in catalogue.giving_way(metric_names) if name in titles]
    if _is_decile_worst(metrics):  # the worst client is then the only column on the clients that do worst
        spare.sort(key=lambda name: name == worst)
    gives_way = ["seeds", *(titles[name] for name in spare)]
    return Table(["method", "seeds", *titles.values()], body, gives_way)


def shown(metrics: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """Return those of ``columns`` that a table has: some method has the metric, and the bottom decile says more."""
    decile = catalogue.part(_metric_names(metrics)[0], "bottom_decile")
    hidden = {decile} if _is_decile_worst(metrics) else set()
    methods = metrics["methods"]
    return [name for name in columns if name not in hidden and any(name in method["metrics"] for method in methods)]


def _is_decile_worst(metrics: Mapping[str, Any]) -> bool:
    """Return whether clients are so few that the bottom decile is the worst client."""
    return max(map(clients, metrics["methods"])) <= _FEW


def _metric_names(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics that ``--metric`` named; those of a newer pfl are left out."""
    ranking = {metric.name for metric in catalogue.METRICS.values() if metric.ranks}
    return tuple(name for name in metrics.get("metric", ()) if name in ranking) or catalogue.DEFAULT


def _form(name: str, metric_names: Sequence[str]) -> Metric:
    """Return the entry of a column; a gain has the form of the metric that methods are ranked by."""
    entry, first = catalogue.METRICS[name], catalogue.METRICS[metric_names[0]]
    return (
        replace(entry, percent=first.percent, digits=first.digits, optional=first.optional) if name == "gain" else entry
    )


def clients(method: Mapping[str, Any]) -> int:
    """Return the number of clients with samples per seed, from a method's row in the stored metrics."""
    count: int = method["metrics"].get("accuracy", {"n": 0})["n"]
    return round(count / len(method["seeds"]))


def numbers(metrics: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return heading and rows of ``table.csv``: every number of the stored ``metrics``, one row per method."""
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
                row["gain_p"], row["gain_p_corrected"] = metric.get("p"), metric.get("p_corrected")
            if name in catalogue.METRICS and catalogue.METRICS[name].needs:
                row[f"{name}_clients"] = metric.get("n")
            if name in ("better_off", "worse_off"):
                row[f"{name}_by_chance"] = metric.get("by_chance")
                row[f"{name}_by_chance_high"] = metric.get("by_chance_high")
        body.append(row)
    heading = [name for name in body[0] if any(row[name] is not None for row in body)]
    return heading, [[row[name] for name in heading] for row in body]


def _cell(entry: Metric, metric: Mapping[str, Any] | None) -> str:
    if metric is None or metric["value"] is None or math.isnan(metric["value"]):
        return "-"
    name, digits, scale = entry.name, entry.digits, 100 if entry.percent else 1
    value, spread = metric["value"] * scale, metric.get("std_over_seeds")
    sign = "+" if name == "gain" and value > 0 else ""
    text = f"{sign}{value:.{digits}f}"
    if name == "gain" and metric.get("interval"):
        low, high = (bound * scale for bound in metric["interval"])
        return f"{text} [{low:+.{digits}f}, {high:+.{digits}f}]"
    if "by_chance" in metric:
        return f"{text}{MARK if metric['exceeds_chance'] else ''} ({scale * metric['by_chance']:.1f})"
    # How many clients are left out stands below the table, how many seeds did not reach a target beside the number.
    seeds = "of" in metric and metric["n"] < metric["of"] and not entry.optional
    reached = f" ({metric['n']} of {metric['of']})" if seeds else ""
    return (f"{text} ± {spread * scale:.{digits}f}" if spread else text) + reached
