"""The learning curves of a page: accuracy against rounds, MB sent and seconds of a client, and on both splits."""

from __future__ import annotations

import math
from typing import Any

from pflcli.core import registry
from pflcli.core.metrics import catalogue
from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import Row, Spec, channel
from pflcli.evaluation.stored_comparison import Comparison
from pflcli.plugins.page.chart import (
    HEIGHT,
    IS_METHOD,
    MAX_NAMED_METHODS,
    Chart,
    choose_constant,
    draw_costs,
    explain_costs,
    finish,
    name_points,
    opacity,
    place_labels,
    thickness,
    tip,
)
from pflcli.plugins.page.runs import Point, Runs

_ACCURACY = catalogue.METRICS["accuracy"]
_AXES = {
    "round": ("rounds", "round"),
    "megabytes": ("MB sent", "MB sent, all links"),
    "seconds": ("seconds of a client", "seconds that a client computes on one core"),
}
"""By field of a point: what the reader chooses, and the title of the axis."""
_MAX_DOTS = 30
"""Curves of fewer points have dots at them."""


def draw(comparison: Comparison, runs: Runs) -> list[Chart]:
    """Return a chart for each horizontal axis, in the same place, and one of both splits where both were measured."""
    if not any(curve.points for curve in runs.curves.values()):
        return []
    drawn = (_draw_axis(comparison, runs, axis) for axis in _AXES)
    return [*(chart for chart in drawn if chart is not None), *_draw_splits(comparison, runs)]


def _draw_axis(comparison: Comparison, runs: Runs, axis: str) -> Chart | None:
    """Return accuracy against one axis: a line per method, a dot where it is reported, and its name at the right."""
    ends = [
        _row(label, curve.end)
        for label, curve in runs.curves.items()
        if not (math.isnan(getattr(curve.end, axis)) or math.isnan(curve.end.accuracy))
    ]
    if not ends:
        return None
    shown, count = {row["method"] for row in ends}, runs.validation_samples
    rows: list[Row] = []
    for label, curve in runs.curves.items():
        for point in curve.points if label in shown else ():
            reach = math.sqrt(point.accuracy * (1 - point.accuracy) / count) if count else 0.0
            low, high = max(point.accuracy - reach, 0.0), min(point.accuracy + reach, 1.0)
            rows.append({**_row(label, point), "low": low, "high": high})
    constant = None if axis == "round" else choose_constant([row[axis] for row in ends])
    across: Spec = {"axis": {"format": "d", "tickMinStep": 1}}
    if axis != "round":
        across = draw_costs(max(row[axis] for row in (*ends, *rows)), constant)
    scale = vega.score_scale([row["accuracy"] for row in (*ends, *rows)], _ACCURACY)
    y: Spec = {"title": "validation accuracy", "axis": {"format": ".2~%"}, "scale": scale}
    few, colour = len(ends) <= MAX_NAMED_METHODS, vega.method_colour(comparison.methods, comparison.baseline)
    base: Spec = {
        "x": channel(axis, title=_AXES[axis][1], **across),
        "color": colour,
        "opacity": opacity(),
        "tooltip": [tip("method"), tip("accuracy", ".3f"), tip("round", ".4~g"), *_tip_costs()],
    }
    line = vega.layer(
        {"type": "line", "point": all(len(curve.points) < _MAX_DOTS for curve in runs.curves.values())},
        **base,
        y=channel("accuracy", **y),
        order=channel("round"),
        strokeDash=vega.method_dash(comparison.methods, comparison.baseline),
        strokeWidth=thickness(),
    )
    shade = {"condition": {"test": IS_METHOD, "value": 0.3}, "value": 0.08}
    band = vega.layer(
        {"type": "area"},
        **{**base, "opacity": shade, "tooltip": None},
        y=channel("low", **y),
        y2={"field": "high"},
        order=channel("round"),
    )
    dot = vega.layer({"type": "point", "filled": True, "size": 90}, **base, y=channel("accuracy", **y))
    named = place_labels(ends, "accuracy", scale["domain"], few=few)
    layers = [
        {**vega.data(rows), "layer": [*([band] if count else []), line]},
        {**vega.data(named), "layer": [*name_points(base, "accuracy", y, few=few), dot]},
    ]
    caption = _describe(comparison, runs, axis, shown, few=few) + explain_costs(constant).rstrip()
    return Chart(
        f"curves-{axis}",
        f"Accuracy by {_AXES[axis][0]}",
        caption.rstrip(),
        finish({"layer": layers}),
        True,
        _AXES[axis][0],
    )


def _row(label: str, point: Point) -> Row:
    return {"method": label, **{name: getattr(point, name) for name in ("accuracy", *_AXES)}}


def _tip_costs() -> list[Spec]:
    return [tip("megabytes", ".4~g", "MB"), tip("seconds", ".4~g")]


def _describe(comparison: Comparison, runs: Runs, axis: str, shown: set[str], *, few: bool) -> str:
    """Return the caption: on which samples curves were measured, what was chosen by these, and what is not drawn."""
    count, several = runs.validation_samples, len(comparison.seeds) > 1
    chose = {label: _choice_in_rounds(comparison.row(label)["method"]) for label, _ in comparison.clients.tuned}
    choices = "; ".join(f"{label} ({what})" for label, what in chose.items() if what and label in runs.curves)
    single = [label for label in shown if not runs.curves[label].points]
    single.sort(key=comparison.methods.index)
    absent = [label for label in comparison.methods if label not in shown]
    sentences = [
        f"Accuracy on the {f'{count:,} ' if count else ''}validation samples after each measured round, not on the "
        "samples of the table: that of personal models if the method measured it, otherwise that of the global model.",
        "The large dot is the round that is reported.",
        f"Only this one is known of {', '.join(single)}." if single else "",
        f"By the same samples, clients chose while they trained, which raises the curves of {choices}."
        if choices
        else "",
        "The band is one standard error, which counts samples as independent." if count else "",
        "Seconds are those in which the mean client of each round computes on one core of the machine that trained; "
        "sending, and adapting after the rounds, is not included."
        if axis == "seconds"
        else "",
        f"Without rounds: {', '.join(absent)}." if absent else "",
        "Means over seeds, up to the last round that all of them played." if several else "",
        "" if few else "Highlight a method to see its name.",
    ]
    return "".join(f"{sentence} " for sentence in sentences if sentence)


def _choice_in_rounds(method: str) -> str:
    """Return what clients choose by validation samples while they train; empty if nothing."""
    known = registry.exists("methods", method)
    return str(registry.card("methods", method).facts.get("CHOOSES_IN_ROUNDS", "")) if known else ""


def _draw_splits(comparison: Comparison, runs: Runs) -> list[Chart]:
    """Return the chart of validation and test accuracy by round, of one method at a time; empty if none has both."""
    rows: list[Row] = [
        {"method": label, "round": point.round, "split": split, "accuracy": value}
        for label, curve in runs.curves.items()
        for point in curve.points
        for split, value in (("validation", point.accuracy), ("test", point.test))
        if not math.isnan(point.test)
    ]
    known = [label for label in comparison.methods if any(row["method"] == label for row in rows)]
    if len({row["round"] for row in rows}) < 2:
        return []
    first = comparison.chosen if comparison.chosen in known else known[0]
    scale = vega.score_scale([row["accuracy"] for row in rows], _ACCURACY)
    base: dict[str, Any] = {
        "x": channel("round", title="round", axis={"format": "d", "tickMinStep": 1}),
        "y": channel("accuracy", title="accuracy", axis={"format": ".2~%"}, scale=scale),
        "color": vega.method_colour(comparison.methods, comparison.baseline),
        "tooltip": [tip("method"), tip("split"), tip("round", ".4~g"), tip("accuracy", ".3f")],
    }
    dash = {"condition": {"test": "datum.split == 'validation'", "value": [5, 4]}, "value": [1, 0]}
    last = {(row["method"], row["split"]): row for row in rows}
    names = [{**row, "name": f"{vega.shorten(row['method'])}: {row['split']}"} for row in last.values()]
    beside: Spec = {"value": {"expr": "width + 5"}}
    chosen = {"transform": [{"filter": "datum.method == (indexof(known, method) >= 0 ? method : fallback)"}]}
    layers = [
        {
            **vega.data(rows),
            **chosen,
            **vega.layer({"type": "line"}, **base, detail={"field": "split"}, strokeDash=dash),
        },
        {
            **vega.data(names),
            **chosen,
            **vega.layer({"type": "text", "align": "left"}, **{**base, "x": beside}, text={"field": "name"}),
        },
    ]
    caption = (
        "Accuracy on validation samples (dashed) and on test samples, after the rounds in which both were measured "
        f"(--test-last), of {first}; highlight another method to see its curves. Measured for {', '.join(known)}."
    )
    spec = finish({"layer": layers}, HEIGHT, fallback=first, known=known)
    return [Chart("splits", "Validation and test accuracy by round", caption, spec)]
