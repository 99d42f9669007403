"""Build the tables of an evaluation or a comparison, for a terminal, as Markdown and as CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.core.tasks import CLASSES, RANKING, find
from pflcli.evaluation.metrics import gains

MARK = "*"
"""Mark of a share of clients that exceeds chance."""

GAINS = ("gain", "gain_relative")
"""The columns of gains: in the unit of the metric, and as a part of the baseline's error."""

MAX_FEW_CLIENTS = 10
"""Up to this number of clients the bottom decile is the worst client: tables show only one of the two."""

KINDS = ("evaluation", "comparison")
"""The kinds of artifacts that have a table."""


class Table(NamedTuple):
    """Headings, rows of cells, and the headings of columns that a narrow terminal leaves out, in this order."""

    heading: list[str]
    rows: list[list[str]]
    gives_way: list[str]

    def markdown(self) -> str:
        """Return the table as Markdown, with the first column left-aligned and the others right-aligned."""
        align = ["---", *["---:"] * (len(self.heading) - 1)]
        return "".join("| " + " | ".join(line) + " |\n" for line in [self.heading, align, *self.rows])


def read_level(metrics: Mapping[str, Any]) -> float:
    """Return the coverage of the intervals of a table."""
    return float(metrics.get("level", gains.LEVEL))


def format_level(metrics: Mapping[str, Any]) -> str:
    """Return the coverage of the intervals of a table in percent, as in ``95 %``."""
    return f"{100 * read_level(metrics):.6g} %"


def mark_reference(row: Mapping[str, Any]) -> str:
    """Return what follows the label of a row that is not ranked."""
    return " (reference)" if row.get("reference") else ""


def build(metrics: Mapping[str, Any], kind: str = "evaluation", columns: Sequence[str] | None = None) -> Table:
    """Return the table of the stored ``metrics``, a row per method; ``columns`` default to those of the ``kind``."""
    methods = metrics["methods"]
    metric_names = _metric_names(metrics)
    used = shown(metrics, catalogue.columns(kind, metric_names) if columns is None else columns)
    worst = catalogue.part(metric_names[0], "worst")
    target, link = metrics.get("target", ""), metrics.get("link", "")
    if target:
        is_accuracy = metric_names[0] in find(CLASSES).metrics
        target = f"{100 * target:g} %" if is_accuracy else f"{target:g} {metrics.get('unit', '')}".rstrip()
    entries = {name: _column_entry(metrics, name, metric_names) for name in used}
    titles = {
        name: entry.heading.format(target=target, link=link) + _name_unit(entry) for name, entry in entries.items()
    }
    body = [
        [
            f"{method['label']}{mark_reference(method)}",
            str(len(method["seeds"])),
            *(_format_cell(entry, method["metrics"].get(name)) for name, entry in entries.items()),
        ]
        for method in methods
    ]
    spare = [name for name in catalogue.dispensable(metric_names) if name in titles]
    if _is_decile_worst(metrics):
        # The worst client is then the only column on poorly served clients, so it is left out last.
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
    return max(map(count_clients, metrics["methods"])) <= MAX_FEW_CLIENTS


def _metric_names(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics of ``--metric``, without those that only a newer version of pfl knows."""
    return tuple(name for name in metrics.get("metric", ()) if name in RANKING) or catalogue.DEFAULT


def find_entry(metrics: Mapping[str, Any], name: str) -> Metric:
    """Return the catalogue entry of a metric, in the unit of the labels of the stored ``metrics``."""
    known = [row["metrics"][name]["value"] for row in metrics["methods"] if name in row["metrics"]]
    sizes = [abs(value) for value in known if value is not None and math.isfinite(value)]
    return catalogue.METRICS[name].in_unit(metrics.get("unit", ""), max(sizes, default=0.0))


def _column_entry(metrics: Mapping[str, Any], name: str, metric_names: Sequence[str]) -> Metric:
    """Return the catalogue entry of a column; a gain is formatted like the ranking metric."""
    entry, first = find_entry(metrics, name), find_entry(metrics, metric_names[0])
    if name != "gain":
        return entry if name in metric_names else replace(entry, suffix="")
    shape = {key: getattr(first, key) for key in ("percent", "digits", "optional", "suffix")}
    return replace(entry, **shape)


def format_score(score: float | None, metric: Metric) -> str:
    """Return a score, in percent where the metric is a fraction; ``-`` if it is unknown."""
    if score is None or math.isnan(score):
        return "-"
    return f"{metric.scale * score:.{metric.digits}f}{' %' if metric.percent else metric.suffix}"


def format_interval(interval: Sequence[float], metric: Metric) -> str:
    """Return the interval of a difference, in points where the metric is a fraction."""
    low, high = (f"{metric.scale * bound:+.{metric.digits}f}" for bound in interval)
    return f"[{low}, {high}]"


def count_clients(method: Mapping[str, Any]) -> int:
    """Return the number of clients with samples per seed, from a method's row in the stored metrics."""
    count: int = method["metrics"].get("accuracy", {"n": 0})["n"]
    return round(count / len(method["seeds"]))


def count_compared_clients(method: Mapping[str, Any], metric: Metric) -> int:
    """Return the number of clients per seed that a gain by this metric counts: those for which it is defined."""
    if not metric.optional or "gain" not in method["metrics"]:
        return count_clients(method)
    count: int = method["metrics"]["gain"]["n"]
    return round(count / len(method["seeds"]))


def list_numbers(metrics: Mapping[str, Any], columns: Sequence[str] | None = None) -> tuple[list[str], list[list[Any]]]:
    """Return headings and rows of ``table.csv``: all numbers of the stored ``metrics``, a row per method.

    Columns without any number are left out, unless ``columns`` names the metrics.
    """
    names = columns or list(dict.fromkeys(name for method in metrics["methods"] for name in method["metrics"]))
    body: list[dict[str, Any]] = []
    for method in metrics["methods"]:
        row: dict[str, Any] = {"method": method["label"], "seeds": len(method["seeds"])}
        for name in names:
            metric = method["metrics"].get(name, {})
            row[name], row[f"{name}_std_over_seeds"] = metric.get("value"), metric.get("std_over_seeds")
            if name == "rounds_to_target":
                row["seeds_to_target"] = metric.get("n")
            if name in GAINS:
                row[f"{name}_low"], row[f"{name}_high"] = metric.get("interval") or (None, None)
            if name == "gain":
                fixed = metric.get("these_clients", {}).get("interval")
                row["gain_low_these_clients"], row["gain_high_these_clients"] = fixed or (None, None)
                row["gain_p"], row["gain_p_corrected"] = metric.get("p"), metric.get("p_corrected")
            if name in catalogue.METRICS and catalogue.METRICS[name].needs:
                row[f"{name}_clients"] = metric.get("n")
            if name in ("better_off", "worse_off"):
                row[f"{name}_by_chance"] = metric.get("by_chance")
                row[f"{name}_by_chance_high"] = metric.get("by_chance_high")
        body.append(row)
    heading = [name for name in body[0] if columns or any(row[name] is not None for row in body)]
    return heading, [[row[name] for name in heading] for row in body]


def _name_unit(entry: Metric) -> str:
    """Return what follows the heading of a column: a difference of percentages is in points."""
    if entry.percent:
        return " (points)" if entry.name == "gain" else " %"
    return entry.title.removeprefix(entry.heading)


def _format_cell(entry: Metric, metric: Mapping[str, Any] | None) -> str:
    if metric is None or metric["value"] is None or math.isnan(metric["value"]):
        return "-"
    name, digits, scale = entry.name, entry.digits, entry.scale
    value, spread = metric["value"] * scale, metric.get("std_over_seeds")
    sign = "+" if name in GAINS and value > 0 else ""
    text = f"{sign}{value:.{digits}f}"
    if name in GAINS and metric.get("interval"):
        return f"{text} {format_interval(metric['interval'], entry)}"
    if "by_chance" in metric:
        return f"{text}{MARK if metric['exceeds_chance'] else ''} ({scale * metric['by_chance']:.1f})"
    # The number of seeds that reached a target is shown here; clients that are left out are counted below the table.
    seeds = "of" in metric and metric["n"] < metric["of"] and not entry.optional
    reached = f" ({metric['n']} of {metric['of']})" if seeds else ""
    width = f"{(spread or 0) * scale:.{digits}f}"
    # In these columns, brackets are the share by chance; a spread beside it would be a third number.
    is_shown = float(width) > 0 and name not in ("better_off", "worse_off")
    return (f"{text} ± {width}" if is_shown else text) + reached
