"""Charts over rounds and over the axis of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, LIGHT, Row, Spec, channel

Array = NDArray[np.floating[Any]]

_PANELS = {"accuracy": "test accuracy", "bottom_decile": "10th-percentile test accuracy"}
_USUAL = {"capacity": 1.0, "k": 10.0, "sigma": 1.0}
"""Value of each axis that the chart does not show; the nearest swept value is used."""
_MAX_LINES = 8
"""Greatest number of distinguishable lines; of more, evenly spaced ones are drawn."""
_REMARK = {"anchor": "end", "fontSize": 11, "offset": 4}
"""Position of a remark above a panel."""
_VIRIDIS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#d8c81a")


def draw_collapse(history: Mapping[str, Array], rounds: NDArray[np.int64], title: str) -> Spec:
    """Return three stacked curves over rounds: the spectral radius of W_V, the largest bias, and the accuracy.

    ``history`` has values (r,) of ``rho``, ``largest``, ``validation`` (-1 where unknown) and ``rejected`` uploads for
    the ``rounds`` (r,). A radius above 1 amplifies biases. Rounds with rejected uploads are marked.
    """
    bias = np.where(np.isfinite(history["largest"]), history["largest"], np.nan)
    right = np.where(history["validation"] < 0, np.nan, history["validation"])
    is_wide = np.nanmax(bias, initial=0) > 100 * max(np.nanmin(bias, initial=np.inf), 1e-12)
    scales: list[Spec] = [
        {"zero": False, "padding": 8},
        {"type": "log"} if is_wide else {"zero": False, "padding": 8},
        {"domain": [0, 1]},
    ]
    if is_wide:
        bias = np.where(bias > 0, bias, np.nan)
    titles = ("spectral radius of W_V", "largest bias sent", "validation accuracy")
    limits = [int(rounds[0]) - 0.5, int(rounds[-1]) + 0.5]
    panels: list[Spec] = []
    for place, values in enumerate((history["rho"], bias, right)):
        rows: list[Row] = [
            {"round": int(number), "value": float(f"{value:.6g}")}
            for number, value in zip(rounds, values.tolist(), strict=True)
            if math.isfinite(value)
        ]
        axis = {"format": ".2~e"} if place == 1 and is_wide else {}
        line = {
            "data": {"values": rows},
            **vega.layer(
                {
                    "type": "line",
                    "color": LIGHT[place],
                    "strokeWidth": 1.8,
                    "point": {"size": 22, "color": LIGHT[place]} if len(rounds) <= 30 else False,
                },
                x=channel(
                    "round",
                    title="round" if place == 2 else None,
                    scale={"domain": limits, "nice": False},
                    axis={"tickMinStep": 1, "format": "d"},
                ),
                y=channel("value", title=titles[place], scale=scales[place], axis=axis),
            ),
        }
        panels.append({"width": 480, "height": 160, "layer": [line]})
    panels[0]["layer"].append(vega.level_line(1, "y", color=GREY, strokeDash=[5, 4]))
    panels[0]["title"] = {"text": "dashed: 1; above it, biases grow", **_REMARK}
    if len(lost := rounds[history["rejected"] > 0]):
        panels[2]["title"] = {"text": "\u00d7 uploads rejected", **_REMARK}
        panels[2]["layer"].append(
            vega.layer(
                {"type": "point", "shape": "M-.5,-.5L.5,.5M.5,-.5L-.5,.5", "color": "black", "size": 40},
                ({"round": int(number), "value": 0.0} for number in lost),
                x=channel("round"),
                y=channel("value"),
            )
        )
    return vega.figure({"vconcat": panels, "spacing": 16}, title)


def draw_sweep(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Sequence[float]], along: str) -> Spec:
    """Return the accuracy and its 10th percentile over clients along an axis of the grid.

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
    panels = [_sweep_panel(metric, along, lines, levels, alone, colours, is_wide=is_wide) for metric in _PANELS]
    others = [f"{axis} {value:g}" for axis, value in at.items() if axis not in (along, across)]
    title = [*others, "dotted: lambda tuned per client" if along == "lambda" else "lambda tuned per client"]
    return vega.figure({"hconcat": panels, "spacing": 30}, f"kNN-Per: {', '.join(title)}")


def _sweep_panel(
    metric: str,
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
        {"line": name, "at": row[along], "value": row[metric]} for name, line in lines.items() for row in line
    ]
    y = channel("value", title=_PANELS[metric], axis={"format": ".2~%"}, scale={"zero": False, "padding": 8})
    x = channel("at", title=along, scale={"type": "log"} if is_wide else {"zero": False, "nice": False, "padding": 10})
    layers: list[Spec] = [
        vega.layer(
            {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.4},
            ({"line": name, "value": row[metric]} for name, row in levels.items()),
            y=y,
            color=colour,
        )
    ] * bool(levels)
    layers.append(vega.layer({"type": "line", "point": {"size": 26}, "strokeWidth": 1.8}, rows, x=x, y=y, color=colour))
    if alone is not None:
        layers.append(
            vega.layer(
                {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 1.2},
                [{"line": "global model (dashed)", "value": alone[metric]}],
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
