"""The charts of a page about labels that are numbers: predicted and true, errors over time, and clients' labels."""

from __future__ import annotations

import numpy as np

from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.matrices import list_quartiles
from pflcli.evaluation.charts.vega import GREY, LIGHT, Row, channel
from pflcli.evaluation.stored_comparison import Comparison
from pflcli.plugins.page.chart import HEIGHT, Chart, finish, opacity, thickness, tip
from pflcli.plugins.page.runs import Answers, Numbers, Runs

_MAX_DOTS = 1500
"""Samples in the chart of predicted and true numbers."""
_BINS = 20
"""Parts of the time of test samples."""
_OF_CLIENT = "client == null || datum.client == client"


def draw(comparison: Comparison, runs: Runs) -> list[Chart | None]:
    """Return the charts of a comparison whose labels are numbers; none if they are classes."""
    of_method = {answers.method: answers for answers in runs.answers}
    chosen, unit = of_method.get(comparison.chosen), comparison.metrics.get("unit", "")
    return [
        None if chosen is None else _draw_predicted(chosen, unit, len(comparison.seeds)),
        _draw_time(comparison, runs, unit) if comparison.metrics.get("given_split") == "time" else None,
        None if runs.labels is None else _draw_labels(runs.labels),
    ]


def _title(words: str, unit: str) -> str:
    return f"{words}, {unit}" if unit else words


def _draw_predicted(answers: Answers, unit: str, seeds: int) -> Chart:
    count = len(answers.y)
    drawn = np.unique(np.linspace(0, count - 1, min(count, _MAX_DOTS)).round().astype(int)).tolist() if count else []
    rows: list[Row] = [
        {"client": answers.clients[at], "true": float(answers.y[at]), "predicted": float(answers.p[at])} for at in drawn
    ]
    both = np.concatenate([answers.y[drawn], answers.p[drawn]])
    low, high = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
    scale = {"domain": [low, high], "zero": False, "nice": True}
    x = channel("true", title=_title("true", unit), scale=scale)
    y = channel("predicted", title=_title("predicted", unit), scale=scale)
    equal = vega.layer(
        {"type": "line", "color": GREY, "strokeDash": [4, 3]},
        [{"true": end, "predicted": end} for end in (low, high)],
        x=x,
        y=y,
    )
    dots = vega.layer(
        {"type": "point", "filled": True, "size": 18, "color": LIGHT[0]},
        rows,
        x=x,
        y=y,
        opacity=opacity(_OF_CLIENT, 0.05),
        tooltip=[tip("client"), tip("true", ".6~g"), tip("predicted", ".6~g")],
    )
    shown = f" Shown: {len(drawn)} of {count} samples." if len(drawn) < count else ""
    first = " under the first seed" if seeds > 1 else ""
    caption = f"Test samples by their label and the prediction of {answers.method}{first}; on the line both are equal."
    return Chart("predicted", "Predicted and true", f"{caption}{shown}", finish({"layer": [equal, dots]}))


def _draw_time(comparison: Comparison, runs: Runs, unit: str) -> Chart | None:
    rows: list[Row] = []
    for answers in runs.answers:
        part = np.minimum((answers.place * _BINS).astype(int), _BINS - 1)
        errors = np.abs(answers.p - answers.y)
        rows += [
            {
                "method": answers.method,
                "time": float(100 * (at + 0.5) / _BINS),
                "error": float(errors[part == at].mean()),
            }
            for at in np.unique(part).tolist()
        ]
    if not rows:
        return None
    lines = vega.layer(
        {"type": "line"},
        rows,
        x=channel("time", title="part of the test time, %", scale={"domain": [0, 100]}),
        y=channel("error", title=_title("mean absolute error", unit), scale={"zero": False}),
        color=vega.method_colour(comparison.methods, comparison.baseline),
        strokeWidth=thickness(),
        opacity=opacity(),
        tooltip=[tip("method"), tip("time", ".0f"), tip("error", ".4~g")],
    )
    caption = (
        f"Mean absolute error in {_BINS} equal parts of each client's test samples, from the earliest to the latest, "
        "over all clients."
    )
    return Chart("time", "Error over time", caption, finish(lines))


def _draw_labels(numbers: Numbers) -> Chart:
    rows: list[Row] = [{**row, "client": numbers.clients[int(row["place"])]} for row in list_quartiles(numbers.labels)]
    few = len(numbers.clients) <= 40
    axis = {"labels": few, "ticks": few, "labelLimit": 300}
    x = channel("client", "nominal", sort=numbers.clients, title="client", axis=axis)
    scale, tips = (
        {"zero": False},
        [tip("client"), *(tip(key, ".6~g") for key in ("least", "low", "median", "high", "most"))],
    )
    layers = [
        vega.layer(
            {"type": "rule"},
            x=x,
            y=channel("least", title=_title("label", numbers.unit), scale=scale),
            y2={"field": "most"},
            opacity=opacity(_OF_CLIENT),
        ),
        vega.layer(
            {"type": "bar", "color": LIGHT[0], "width": {"band": 0.6}},
            x=x,
            y=channel("low"),
            y2={"field": "high"},
            opacity=opacity(_OF_CLIENT),
            tooltip=tips,
        ),
        vega.layer({"type": "tick", "color": "black"}, x=x, y=channel("median"), tooltip=tips),
    ]
    thinned = f" Shown: {len(numbers.clients)} of {numbers.total} clients." * (len(numbers.clients) < numbers.total)
    caption = f"Labels of each client: their range, the half in the middle, and the median.{thinned}"
    spec = finish({**vega.data(rows), "layer": layers}, HEIGHT)
    return Chart("labels", "Labels of each client", caption, spec, is_wide=True)
