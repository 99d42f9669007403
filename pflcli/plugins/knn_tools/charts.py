"""The chart of a sweep: scores along an axis of its grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.core.metrics.metric import Metric
from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, Row, Spec, channel

_USUAL = {"capacity": 1.0, "k": 10.0, "sigma": 1.0}
"""Value of each axis that the chart does not show; the nearest swept value is used."""
_MAX_LINES = 8
"""Greatest number of distinguishable lines; of more, evenly spaced ones are drawn."""
_VIRIDIS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#d8c81a")


def draw_sweep(
    rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Sequence[float]], along: str, metric: Metric, decile: str
) -> Spec:
    """Return a metric and its bottom decile over clients, the column ``decile``, along an axis of the grid.

    ``rows`` have a value for each of the ``axes`` and the metrics. Lambda is the one tuned per client, which has a row
    of its own. If ``along`` is lambda, the result with the tuned lambda is drawn as a level of each line. The next axis
    that varies distinguishes the lines.
    """
    across = next((a for a, values in axes.items() if len(values) > 1 and a not in (along, "lambda")), None)
    at = {axis: min(axes[axis], key=lambda value: _distance(axis, value)) for axis in _USUAL}
    values = [None] if across is None else _space_evenly(axes[across])
    single = "lambda shared by all clients" if along == "lambda" else "lambda tuned per client"
    lines: dict[str, list[Mapping[str, Any]]] = {}
    levels: dict[str, Mapping[str, Any]] = {}
    for value in values:
        fixed = {**at, **({} if across is None or value is None else {across: value})}
        name = single if value is None else f"{across} {value:g}"
        line = [row for row in rows if all(row[a] == v for a, v in fixed.items() if a != along)]
        tuned = [row for row in line if row["lambda"] == "tuned"]
        if along == "lambda":
            levels[name] = tuned[0]
        lines[name] = [row for row in line if row["lambda"] != "tuned"] if along == "lambda" else tuned
    colours = {
        name: _VIRIDIS[round(place * (len(_VIRIDIS) - 1) / max(len(lines) - 1, 1))] for place, name in enumerate(lines)
    }
    alone = None
    if along != "lambda" and 0.0 in axes["lambda"]:
        alone = next(row for row in rows if row["lambda"] == 0.0)
        colours["global model (dashed)"] = GREY
    is_wide = along == "sigma" and max(axes[along]) > 50 * min(axes[along])
    percentile = 90 if metric.lower_is_better else 10
    columns = {metric.name: f"test {metric.title}", decile: f"{percentile}th-percentile test {metric.title}"}
    form = ".2~%" if metric.percent else ".4~g"
    panels = [
        _sweep_panel(
            name, channel("value", title=title, axis={"format": form}, scale={"zero": False, "padding": 8}),
            along, lines, levels, alone, colours, is_wide=is_wide,
        )
        for name, title in columns.items()
    ]  # fmt: skip
    others = [f"{axis} {value:g}" for axis, value in at.items() if axis not in (along, across)]
    title = [*others, "dotted: lambda tuned per client" if along == "lambda" else "lambda tuned per client"]
    return vega.figure({"hconcat": panels, "spacing": 30}, f"kNN-Per: {', '.join(title)}")


def _sweep_panel(
    column: str,
    y: Spec,
    along: str,
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    levels: Mapping[str, Mapping[str, Any]],
    alone: Mapping[str, Any] | None,
    colours: Mapping[str, str],
    *,
    is_wide: bool,
) -> Spec:
    legend = {"title": None, "symbolType": "stroke", "symbolSize": 300, "symbolStrokeWidth": 2}
    colour = channel("line", "nominal", scale={"domain": [*colours], "range": [*colours.values()]}, legend=legend)
    rows: list[Row] = [
        {"line": name, "at": row[along], "value": row[column]} for name, line in lines.items() for row in line
    ]
    x = channel("at", title=along, scale={"type": "log"} if is_wide else {"zero": False, "nice": False, "padding": 10})
    layers: list[Spec] = [
        vega.layer(
            {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.4},
            ({"line": name, "value": row[column]} for name, row in levels.items()),
            y=y,
            color=colour,
        )
    ] * bool(levels)
    layers.append(vega.layer({"type": "line", "point": {"size": 26}, "strokeWidth": 1.8}, rows, x=x, y=y, color=colour))
    if alone is not None:
        layers.append(
            vega.layer(
                {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 1.2},
                [{"line": "global model (dashed)", "value": alone[column]}],
                y=y,
                color=colour,
            )
        )
    return {"width": 380, "height": 300, "layer": layers}


def _distance(axis: str, value: float) -> float:
    """Return the distance of a value from the usual one; values of sigma are compared by their ratio."""
    return abs(math.log(value / _USUAL[axis])) if axis == "sigma" else abs(value - _USUAL[axis])


def _space_evenly(values: Sequence[float]) -> list[float | None]:
    last, count = len(values) - 1, min(len(values), _MAX_LINES)
    return [values[round(place * last / max(count - 1, 1))] for place in range(count)]
