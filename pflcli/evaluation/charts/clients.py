"""Charts of accuracy, or of another score, by client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, SHAPES, Row, Scores, Spec, channel

MIN_MANY_CLIENTS = 20
"""From this number on, clients are ranked instead of shown by name."""
ACCURACY = catalogue.METRICS["accuracy"]

_PANEL = 440
"""Width in pixels of the panel of lines, and of all small panels together."""
_MAX_DOTS = 3000
"""Greatest number of dots in all small panels together."""


def draw_clients(
    names: Sequence[str], scores: Mapping[str, Scores], baseline: str | None, title: str, metric: Metric = ACCURACY
) -> Spec:
    """Return a chart with a row per client, a dot per method, and a line from the baseline to each dot.

    ``names`` (m,) are the clients' names; ``scores`` maps a method to their scores (m,) in the ``metric``, nan where
    unknown. The client with the best score under the baseline, or on average, is in the first row.
    """
    table = np.stack(list(scores.values()))
    known = ~np.isnan(table)
    means = np.where(known, table, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    base = scores.get(baseline) if baseline is not None else None
    reference = np.where(known.any(axis=0), means, np.nan) if base is None else base
    order = np.argsort(np.nan_to_num(metric.sign * reference, nan=-np.inf), kind="stable")
    methods = [name for name in scores if name != baseline]
    spread = np.linspace(0.3, -0.3, len(methods)) if len(methods) > 1 else np.zeros(len(methods))
    dots: list[Row] = [
        {"method": name, "score": scores[name][client], "row": row + offset, "base": reference[client]}
        for name, offset in zip(methods, spread.tolist(), strict=True)
        for row, client in enumerate(order.tolist())
    ]
    height = round(len(names) * max(12 * len(methods), 25) + 12)
    rows = {
        "scale": {"domain": [-0.6, len(names) - 0.4], "nice": False},
        "axis": {"values": [*range(len(names))], "labelExpr": "clients[datum.value]", "grid": False, "ticks": False},
    }
    across = channel(
        "score",
        title=f"test {metric.title}",
        axis=vega.score_axis(metric),
        scale=vega.score_scale(table.ravel().tolist(), metric),
    )
    domain = [*methods, *([baseline] if base is not None else [])]
    legend = vega.legend_below(map(str, domain), _PANEL, symbolOpacity=1, symbolSize=60)
    colour = vega.method_colour([str(name) for name in domain], baseline, legend)
    shapes = [SHAPES[place // len(vega.LIGHT) % len(SHAPES)] for place in range(len(methods))]
    shape = {**colour, "scale": {"domain": domain, "range": [*shapes, "stroke"][: len(domain)]}}
    y = channel("row", title=None, **rows)
    layers: list[Spec] = []
    if base is not None:
        line = {"type": "rule", "opacity": 0.6, "strokeWidth": 1.2}
        layers.append(vega.layer(line, x=across, x2={"field": "base"}, y=y, color=colour))
        line = {"type": "rule", "color": GREY, "strokeWidth": 2.5}
        marks = [{"score": base[client], "from": row - 0.4, "to": row + 0.4} for row, client in enumerate(order)]
        layers.append(vega.layer(line, marks, x=across, y={**y, "field": "from"}, y2={"field": "to"}))
    dot = {"type": "point", "filled": True, "size": 45, "opacity": 1}
    layers.append(vega.layer(dot, x=across, y=y, color=colour, shape=shape))
    labels = [vega.shorten(names[client]) for client in order]
    params = [{"name": "clients", "value": labels}]
    spec = {"params": params, "width": _PANEL, "height": height, **vega.data(dots), "layer": layers}
    return vega.figure(spec, title)


def draw_ranked(scores: Mapping[str, Scores], baseline: str | None, title: str, metric: Metric = ACCURACY) -> Spec:
    """Return a line per method through its ranked clients and, beside it, a panel per method with each client's gain.

    ``scores`` maps a method to its clients' scores (m,) in the ``metric``. Each line is ranked separately, so its left
    end shows the worst-served clients. The panels show gains over ``baseline``.
    """
    reference = scores.get(baseline) if baseline is not None else None
    others = [name for name in scores if name != baseline]
    legend = vega.legend_below(scores, _PANEL, symbolType="stroke", symbolStrokeWidth=2, symbolSize=250)
    lines = {
        "title": title,
        "width": _PANEL,
        "height": 300,
        "layer": [
            vega.level_line(10, "x", color="#bbbbbb"),
            vega.layer(
                {"type": "text", "align": "left", "baseline": "top", "color": GREY, "dy": 3},
                [{"share": 11, "label": "bottom decile"}],
                x=channel("share"),
                y={"value": 0},
                text={"field": "label"},
            ),
            ranked_lines(scores, [*scores], baseline, metric, legend),
        ],
    }
    if reference is None or not others:
        return vega.figure(lines)
    columns = min(math.ceil(math.sqrt(len(others))), 5)
    rows = math.ceil(len(others) / columns)
    lines["height"] = max(300, round(rows * (_gain_height(rows) + 38) - 20))  # as high as all panels beside it
    return vega.figure({"hconcat": [lines, _gain_panels(scores, str(baseline), columns, metric)], "spacing": 40})


def ranked_lines(
    scores: Mapping[str, Scores],
    methods: Sequence[str],
    baseline: str | None,
    metric: Metric,
    legend: Spec | None = None,
    **encoding: Any,
) -> Spec:
    """Return a layer with a line per method: its clients' scores, from the worst served to the best.

    With many clients the lines go through quantiles. ``encoding`` replaces or adds channels.
    """
    rows: list[Row] = []
    for label in methods:
        known, share = rank_clients(scores[label], metric)
        values = scores[label][known]
        places = np.linspace(0, len(known) - 1, min(len(known), vega.QUANTILES + 1)).round().astype(int)
        rows += [{"method": label, "share": share[i], "score": values[i]} for i in places]
    return {
        **vega.data(rows),
        "mark": "line",
        "encoding": {
            **rank_axes([row["score"] for row in rows], metric),
            "color": vega.method_colour(methods, baseline, legend),
            "strokeDash": vega.method_dash(methods, baseline, legend),
            "strokeWidth": {"value": 1.8},
            "order": channel("share"),
            **encoding,
        },
    }


def rank_axes(values: Sequence[float], metric: Metric) -> Spec:
    """Return the axes of a chart of ranked clients with these scores."""
    across = channel("share", title="clients, worst served first (%)", scale={"domain": [0, 100]})
    scale = vega.score_scale(values, metric)
    return {
        "x": across,
        "y": channel("score", title=f"test {metric.title}", axis=vega.score_axis(metric), scale=scale),
    }


def rank_clients(values: Scores, metric: Metric) -> tuple[Any, Scores]:
    """Return the clients with a score, the worst served first, and the rank of each in percent of the clients."""
    known = np.flatnonzero(~np.isnan(values))
    known = known[np.argsort(metric.sign * values[known], kind="stable")]
    return known, 100 * (np.arange(len(known)) + 0.5) / max(len(known), 1)


def _gain_height(rows: int) -> float:
    """Return the height in pixels of a panel of gains if ``rows`` of them are stacked."""
    return max((330 - 46 * rows) / rows, 50)


def _gain_panels(scores: Mapping[str, Scores], baseline: str, columns: int, metric: Metric) -> Spec:
    """Return a panel per method with a dot per client: its gain against its score under the baseline."""
    reference = scores[baseline]
    others = [name for name in scores if name != baseline]
    factor = metric.scale * metric.sign
    gains = {name: factor * (scores[name] - reference) for name in others}
    colours = vega.method_styles([*scores], baseline)
    most = max(_MAX_DOTS // len(others), 1)
    count, rows = len(reference), math.ceil(len(others) / columns)
    drawn = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
    every = np.concatenate([*gains.values()])
    ends = [0.0, *every[np.isfinite(every)].tolist()]
    room = 0.05 * (max(ends) - min(ends)) or 1.0
    x_scale = vega.score_scale(reference.tolist(), metric)
    y_scale = {"domain": [round(min(ends) - room, 3), round(max(ends) + room, 3)], "nice": False}
    order = np.argsort(np.nan_to_num(reference, nan=np.inf), kind="stable")[drawn]
    last = len(others) - columns
    panels = []
    for place, name in enumerate(others):
        known = gains[name][~np.isnan(gains[name])]
        better, worse = (100 * float(np.mean(side)) if len(known) else 0.0 for side in (known > 0, known < 0))
        dots: list[Row] = [
            {"base": reference[client], "gain": gains[name][client]}
            for client in order.tolist()
            if not math.isnan(gains[name][client])
        ]
        # Only the outer panels have axis labels.
        left, bottom = (
            {} if outer else {"labels": False, "ticks": False} for outer in (not place % columns, place > last - 1)
        )
        x_axis = vega.score_axis(metric, tickCount=4, labelOverlap="greedy", labelSeparation=8, **bottom)
        x = channel("base", title=None, axis=x_axis, scale=x_scale)
        y = channel("gain", title=None, axis={"tickCount": 4, **left}, scale=y_scale)
        size = 16 if len(dots) <= 100 else 5
        dot = {"type": "point", "filled": True, "size": size, "opacity": 0.6, "color": colours[name][0]}
        panels.append(
            {
                "title": {
                    "text": [vega.shorten(name), f"↑ {better:.0f} % ↓ {worse:.0f} %"],
                    "fontSize": 10,
                    "offset": 4,
                },
                "width": (_PANEL - 14 * (columns - 1)) / columns,
                "height": _gain_height(rows),
                "layer": [vega.level_line(0, "y", color=GREY, strokeDash=[4, 3]), vega.layer(dot, dots, x=x, y=y)],
            }
        )
    unit = " (points)" if metric.percent else metric.title.removeprefix(metric.heading)
    thinned = f"; {len(drawn)} of {count} are drawn" if len(drawn) < count else ""
    return {
        "title": {
            "text": f"Gain{unit} of each client over {baseline}, by its {metric.heading} under {baseline}",
            "subtitle": f"a dot per client and seed: ↑ better off, ↓ worse off{thinned}",
            "fontSize": 12,
        },
        "concat": panels,
        "columns": columns,
        "spacing": {"column": 14, "row": 12},
    }
