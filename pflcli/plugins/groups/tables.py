"""Tables of the scores by group of samples, and the notes below them, from the stored ``groups`` of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NotRequired

from annotated_types import Len
from typing_extensions import TypedDict

from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.core.wording import listed
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.presentation.tables import Table

FILE = "groups.csv"


class _Score(TypedDict):
    value: float | None
    n: NotRequired[int]
    of: NotRequired[int]
    std_over_seeds: NotRequired[float | None]
    interval: NotRequired[Annotated[list[float], Len(2, 2)] | None]
    p_corrected: NotRequired[float]


class _Group(TypedDict):
    group: str
    label: str
    seeds: Annotated[list[int], Len(1)]
    reference: NotRequired[bool]
    samples: float
    clients: float
    one_client: NotRequired[bool]
    metrics: dict[str, _Score]


class _Difference(TypedDict):
    value: float
    best: str
    worst: str
    interval: NotRequired[Annotated[list[float], Len(2, 2)]]


class _Groups(TypedDict):
    column: str
    metric: str
    rows: list[_Group]
    differences: dict[str, _Difference | None]
    fewest_samples: int


class Fields(TypedDict):
    """The fields of ``metrics.json`` that these tables read; others are allowed."""

    groups: NotRequired[list[_Groups]]


def list_tables(metrics: Mapping[str, Any]) -> list[tuple[str, Table, str]]:
    """Return a title, a table and the file of its numbers for each column by which scores are grouped."""
    return [(f"Scores by {entry['column']}", _build(metrics, entry), FILE) for entry in metrics.get("groups", ())]


def _build(metrics: Mapping[str, Any], entry: Mapping[str, Any]) -> Table:
    """Return a table with a row per method and group; the first row of a method has its largest difference."""
    metric, rows = catalogue.METRICS[entry["metric"]], entry["rows"]
    names = [*dict.fromkeys((metric.name, "accuracy", "calibration_error", "gain"))]
    table = tables.build({**metrics, "methods": rows}, columns=names)
    body, described = [], set[str]()
    for row, (label, _, *cells) in zip(rows, table.rows, strict=True):
        difference = "" if label in described else _describe_difference(entry["differences"][row["label"]], metric)
        described.add(label)
        body.append(
            [label, row["group"], *(f"{round(row[key], 1):g}" for key in ("samples", "clients")), *cells, difference]
        )
    title = f"largest difference{' (points)' if metric.percent else ''}"
    return Table(["method", entry["column"], "samples", "clients", *table.heading[2:], title], body, table.gives_way)


def _describe_difference(difference: Mapping[str, Any] | None, metric: Metric) -> str:
    if difference is None:
        return "-"
    pair = f"{difference['best']} over {difference['worst']}"
    shown = [f"{metric.scale * bound:+.{metric.digits}f}" for bound in difference.get("interval", ())]
    interval = f" [{', '.join(shown)}]" if shown else ""
    return f"{metric.scale * difference['value']:.{metric.digits}f}{interval} ({pair})"


def list_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return notes on small groups, on groups of one client, and on what the intervals cover."""
    lines = []
    for entry in metrics.get("groups", ()):
        column, rows, fewest = entry["column"], entry["rows"], entry["fewest_samples"]
        small = _list_groups(row for row in rows if row["samples"] < fewest)
        single = _list_groups(row for row in rows if row.get("one_client"))
        if small:
            lines.append(
                f"{column}: groups of fewer than {fewest} samples, whose scores are uncertain and which do not count in"
                f" the largest difference: {listed(small)}"
            )
        if single:
            lines.append(f"{column}: groups of one client, whose gain has no interval: {listed(single)}")
        judged = sum("p_corrected" in row["metrics"].get("gain", {}) for row in rows)
        if judged > 1:
            lines.append(
                f"{column}: the intervals of the {judged} gains by group cover the true ones with"
                f" {tables.format_level(metrics)} together (Bonferroni's correction)"
            )
    return lines


def _list_groups(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["group"] for row in rows))


def list_numbers(metrics: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Return headings and rows of ``groups.csv``: a row for each column, method and group of the stored ``metrics``."""
    if "groups" not in metrics:
        return {}
    ranked = metrics["groups"][0]["metric"]
    names = [*dict.fromkeys((ranked, "accuracy", "calibration_error"))]
    spread = [column for name in names for column in (name, f"{name}_std_over_seeds")]
    heading = ["column", "method", "group", "seeds", "samples", "clients", *spread, "gain", "gain_low", "gain_high"]
    body = []
    for entry in metrics["groups"]:
        for row in entry["rows"]:
            scores = [row["metrics"].get(name, {}) for name in names]
            gain, difference = row["metrics"].get("gain", {}), entry["differences"][row["label"]] or {}
            body.append(
                [
                    *(entry["column"], row["label"], row["group"], len(row["seeds"]), row["samples"], row["clients"]),
                    *(each.get(key) for each in scores for key in ("value", "std_over_seeds")),
                    *(gain.get("value"), *(gain.get("interval") or (None, None)), difference.get("value")),
                    *(*difference.get("interval", (None, None)), difference.get("best"), difference.get("worst")),
                ]
            )
    largest = "largest_difference"
    heading += [largest, f"{largest}_low", f"{largest}_high", "best_group", "worst_group"]
    return {FILE: (heading, body)}
