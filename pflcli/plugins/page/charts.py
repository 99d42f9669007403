"""The charts of a page, linked by the method and the client that the reader highlights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.wording import counted
from pflcli.evaluation.charts import clients as client_charts
from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, LIGHT, Row, Spec, channel
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.stored_comparison import Comparison, metric_value
from pflcli.plugins.page import group_chart, learning, numbers
from pflcli.plugins.page.chart import (
    FADED,
    HEIGHT,
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
    to_cost,
    to_place,
)
from pflcli.plugins.page.runs import Holdings, Relation, Runs

MAX_NAMED_CLIENTS = 40
"""Up to this number, each client has a row with its name."""

_ROW = 20
"""Height in pixels of a row of a chart with one row per client or class."""
_WIDTH, _WIDE = 560, 1150
"""Width in pixels of the still picture of a chart, and of a chart as wide as the page."""
_MAX_LABEL = 300
"""Width in pixels of the name of a client beside a chart, at most: 40 to 50 letters."""
_MAX_SVG_BYTES = 100_000
"""Larger SVG files are replaced by PNG."""

_IS_CLIENT = "client != null && datum.client == client"
_CLIENT_FADED = "client == null || datum.client == client"
_BETTER, _WORSE, _GRAPH = LIGHT[0], LIGHT[1], LIGHT[6]


def draw(comparison: Comparison, runs: Runs) -> list[Chart]:
    """Return all charts of a comparison, in the order of the page."""
    charts: list[Chart | None] = [_draw_ranked(comparison)]
    if comparison.clients.baseline is not None:
        charts += [_draw_cost(comparison), _draw_dumbbell(comparison)]
    charts += learning.draw(comparison, runs)
    charts += [group_chart.draw(comparison, *pair) for pair in enumerate(comparison.metrics.get("groups", ()))]
    charts += _draw_tuned(comparison)
    if runs.holdings is not None:
        charts.append(_draw_holdings(runs.holdings))
    charts += numbers.draw(comparison, runs)
    charts += [_draw_relation(relation, place) for place, relation in enumerate(runs.relations)]
    return [chart for chart in charts if chart is not None]


def render_still(chart: Chart) -> str:
    """Return a chart on white as a data URL: SVG, or PNG if the SVG would be large."""
    sized = {**chart.spec, "width": _WIDE if chart.is_wide else _WIDTH, "background": "white"}
    svg = vega.render(sized, "svg")
    if len(svg) <= _MAX_SVG_BYTES:
        return vega.data_url("image/svg+xml", svg)
    return vega.data_url("image/png", vega.render(sized, "png", scale=1.0))


def _mark_client(mark: Spec, **encoding: Any) -> Spec:
    """Return a layer that marks the row or the column of the highlighted client."""
    shape = {"stroke": GREY, "strokeWidth": 2, "fillOpacity": 0, "filled": False, **mark}
    return {"transform": [{"filter": _IS_CLIENT}], "mark": shape, "encoding": encoding}


def _draw_ranked(comparison: Comparison) -> Chart:
    clients, methods, baseline, metric = comparison.clients, comparison.methods, comparison.baseline, comparison.metric
    tips = [tip("method"), tip("share", ".0f"), tip("score", ".3f")]
    lines = client_charts.ranked_lines(
        clients.scores, methods, baseline, metric, strokeWidth=thickness(), opacity=opacity(), tooltip=tips
    )
    axes = {axis: lines["encoding"][axis] for axis in ("x", "y")}
    axes["y"]["title"] = metric.title
    dots: list[Row] = []
    for label in methods:
        ranked, share = client_charts.rank_clients(clients.scores[label], metric)
        places = dict(zip(ranked.tolist(), share.tolist(), strict=True))
        dots += [
            {
                "method": label,
                "client": clients.names[client],
                "share": places[client],
                "score": clients.scores[label][client],
            }
            for client in clients.drawn.tolist()
            if client in places
        ]
    dot = {
        **vega.data(dots),
        "transform": [{"filter": _IS_CLIENT}],
        **vega.layer(
            {"type": "point", "filled": True, "size": 70, "opacity": 1},
            **axes,
            color=vega.method_colour(methods, baseline),
            tooltip=[tip("client"), *tips],
        ),
    }
    count = len(clients.names)
    decile = [{**vega.level_line(10, "x", strokeDash=[3, 3], opacity=0.5)}] * (count > tables.MAX_FEW_CLIENTS)
    marked = " The dashed line marks the bottom decile: a tenth of the clients lie left of it." if decile else ""
    thinned = f" Curves go through {vega.QUANTILES + 1} quantiles." if count > vega.QUANTILES else ""
    caption = (
        f"Each method's {counted(count, 'client')}, ranked by {metric.heading} from the worst served (left) to the "
        f"best; every line is sorted by itself.{marked}{thinned}"
    )
    return Chart("ranked", "All clients, ranked", caption, finish({"layer": [*decile, lines, dot]}))


def _title_gain(comparison: Comparison) -> str:
    """Return the title of an axis of gains."""
    metric = comparison.metric
    unit = " (points)" if metric.percent else metric.title.removeprefix(metric.heading)
    return f"gain over {comparison.baseline_name}{unit}"


def _list_costs(comparison: Comparison) -> list[Row]:
    """Return the gain and the communication of each method that is no reference."""
    scale = comparison.metric.scale
    rows: list[Row] = []
    for row in comparison.rows:
        gain = row["metrics"].get("gain", {})
        megabytes = metric_value(row, "megabytes")
        if gain.get("value") is None or math.isnan(megabytes) or row.get("reference"):
            continue
        low, high = gain.get("interval") or (gain["value"], gain["value"])
        rows.append(
            {
                "method": row["label"],
                "MB": megabytes,
                "gain": scale * gain["value"],
                "low": scale * low,
                "high": scale * high,
                "seconds": metric_value(row, "seconds"),
            }
        )
    return rows


def _draw_cost(comparison: Comparison) -> Chart | None:
    """Return the gain of each method against its communication; None if fewer than two methods have a gain."""
    rows = _list_costs(comparison)
    if len(rows) < 2:
        return None
    ends = [0.0, *(row[key] for row in rows for key in ("low", "high"))]
    room = 0.05 * (max(ends) - min(ends)) or 1.0
    scale_y: Spec = {"domain": [float(f"{min(ends) - room:.4g}"), float(f"{max(ends) + room:.4g}")], "nice": False}
    y: Spec = {
        "title": f"{_title_gain(comparison)}, {tables.format_level(comparison.metrics)} interval",
        "scale": scale_y,
    }
    constant = choose_constant([row["MB"] for row in rows])
    base: Spec = {
        "x": channel("drawn", title="MB sent, all links", **draw_costs(max(row["MB"] for row in rows), constant)),
        "color": vega.method_colour(comparison.methods, comparison.baseline),
        "opacity": opacity(),
        "tooltip": [
            tip("method"),
            *(tip(name, ".2f") for name in ("gain", "low", "high")),
            *(tip(name, ".4~g") for name in ("MB", "seconds")),
        ],
    }
    few = len(rows) <= MAX_NAMED_METHODS
    zero = {**vega.level_line(0, "y", strokeDash=[3, 3], opacity=0.6)}
    zero["encoding"] = {"y": channel("level", **y)}
    points = {
        **vega.data(place_labels(_dodge(rows, constant), "gain", scale_y["domain"], few=few)),
        "layer": [
            *name_points(base, "gain", y, few=few),
            vega.layer(
                {"type": "rule"}, **base, y=channel("low", **y), y2={"field": "high"}, strokeWidth=thickness(1.5)
            ),
            vega.layer({"type": "point", "filled": True, "size": 90}, **base, y=channel("gain", **y)),
        ],
    }
    caption = (
        f"Gain of each method over {comparison.baseline_name} against the data it sends. Upper left is best. Bars are "
        f"{tables.format_level(comparison.metrics)} intervals. "
        f"{explain_costs(constant)}"
        "Methods that send the same amount are drawn side by side."
        + ("" if few else " Highlight a method to see its name.")
    )
    return Chart("cost", "Gain against bytes", caption, finish({"layer": [zero, points]}))


def _dodge(rows: list[Row], constant: float | None) -> list[Row]:
    """Return the rows with horizontal positions, where methods that send the same amount are side by side."""
    places = [to_place(row["MB"], constant) for row in rows]
    width = max(places) or 1.0
    drawn: list[Row] = []
    for number, row in enumerate(rows):
        same = [other for other, place in enumerate(places) if abs(place - places[number]) < 0.01 * width]
        shift = min(0.015, 0.06 / len(same)) * width * (same.index(number) - (len(same) - 1) / 2)
        drawn.append({**row, "drawn": to_cost(places[number] + shift, constant)})
    return drawn


def _draw_dumbbell(comparison: Comparison) -> Chart | None:
    clients, baseline, sign = comparison.clients, comparison.clients.baseline, comparison.metric.sign
    assert baseline is not None
    rows: list[Row] = []
    for label in comparison.methods:
        if label == comparison.baseline:
            continue
        scores = clients.scores[label]
        rows += [
            {
                "method": label,
                "client": clients.names[client],
                "place": place,
                "baseline": baseline[client],
                "score": scores[client],
                "gain": sign * (scores[client] - baseline[client]),
                "n": clients.samples[client],
            }
            for place, client in enumerate(clients.drawn.tolist())
            if not (math.isnan(scores[client]) or math.isnan(baseline[client]))
        ]
    if not rows:
        return None
    few = len(clients.drawn) <= MAX_NAMED_CLIENTS
    shown = f"{len(clients.drawn)} of {len(clients.names)} clients, evenly spaced in this order" * clients.is_thinned
    reference = comparison.baseline_name
    caption = (
        f"One {'row' if few else 'column'} per client, the worst served by {reference} first. The grey mark is "
        f"{reference}; the line leads to the method, blue where it gains and orange where it loses. Highlight "
        f"another method to see its gains.{f' Shown: {shown}.' if shown else ''}"
    )
    height = _ROW * len(clients.drawn) + 60 if few else HEIGHT
    spec = finish(
        _dumbbell_layers(rows, comparison, few), height, fallback=comparison.chosen, reference=comparison.baseline or ""
    )
    return Chart("dumbbell", "Each client, before and after", caption, spec, is_wide=True)


def _dumbbell_layers(rows: list[Row], comparison: Comparison, few: bool) -> Spec:
    """Return a line per client from the baseline's score to the method's; rows for ``few`` clients, else columns."""
    numbers = [row[key] for row in rows for key in ("score", "baseline")]
    score = {
        "title": f"{comparison.metric.title}: {comparison.baseline_name} (grey) and the method",
        "axis": vega.score_axis(comparison.metric),
        "scale": vega.score_scale(numbers, comparison.metric),
    }
    count = len(comparison.clients.drawn)
    if few:
        order = {"field": "place", "order": "ascending"}
        client = {"y": channel("client", "nominal", sort=order, title=None, axis={"labelLimit": _MAX_LABEL})}
    else:
        ends = {"domain": [-0.5, count - 0.5], "nice": False}
        axis = {"labels": False, "ticks": False, "grid": False}
        client = {"x": channel("place", scale=ends, title="clients, worst served first", axis=axis)}
    across = "x" if few else "y"
    shared = {
        **client,
        "opacity": opacity(_CLIENT_FADED, 0.2),
        "tooltip": [
            *(tip("client"), tip("method"), tip("baseline", ".3f"), tip("score", ".3f"), tip("gain", "+.3f")),
            tip("n", ".0f", "samples"),
        ],
    }
    colour = {"color": {"condition": {"test": "datum.gain >= 0", "value": _BETTER}, "value": _WORSE}}
    column = f"width / {count}"  # width of a client in pixels
    tick = {
        "type": "tick",
        "thickness": 3,
        "size": 12 if few else {"expr": f"min(8, 0.75 * {column})"},
        "orient": "vertical" if few else "horizontal",
        "color": GREY,
    }
    return {
        **vega.data(rows),
        "transform": [{"filter": "datum.method == (method == null || method == reference ? fallback : method)"}],
        "layer": [
            _mark_client({"type": "rect"} if few else {"type": "rule"}, **client),
            {
                "mark": {"type": "rule", "strokeWidth": 2.5 if few else {"expr": f"min(2.5, 0.6 * {column})"}},
                "encoding": {
                    **shared,
                    **colour,
                    across: channel("baseline", **score),
                    f"{across}2": {"field": "score"},
                },
            },
            {"mark": tick, "encoding": {**shared, across: channel("baseline", **score)}},
            {
                "mark": {
                    "type": "point",
                    "filled": True,
                    "size": 60 if few else {"expr": f"min(30, pow(0.8 * {column}, 2))"},
                },
                "encoding": {**shared, **colour, across: channel("score", **score)},
            },
        ],
    }


def _draw_tuned(comparison: Comparison) -> list[Chart]:
    """Return a chart for each method and option that clients tuned on validation samples, such as its lambda.

    Options of the same name mean different things in different methods. Variants of a method share a chart.
    """
    clients = comparison.clients
    shared: dict[tuple[str, str], list[str]] = {}
    for label, name in clients.tuned:
        shared.setdefault((comparison.row(label).get("method", label), name), []).append(label)
    is_gain = clients.baseline is not None
    title = _title_gain(comparison) if is_gain else comparison.metric.title
    charts: list[Chart] = []
    for (method, name), labels in shared.items():
        rows = [
            row for label in labels for row in _tuned_rows(label, clients.tuned[label, name], clients.drawn, comparison)
        ]
        if not rows:
            continue
        axes = {"x": channel("value", title=f"{name} of {method}"), "y": channel("outcome", title=title)}
        points = vega.layer(
            {"type": "point", "filled": True, "size": 60},
            **axes,
            color=vega.method_colour(comparison.methods, comparison.baseline),
            opacity=opacity(f"({FADED}) && ({_CLIENT_FADED})", 0.12),
            tooltip=[*(tip("client"), tip("method")), *(tip("value", ".3~g", name), tip("outcome", ".2f", title))],
        )
        # All points have a ring, which is visible around the client: a layer without points would have no axes.
        mark = {"type": "point", "size": 180, "filled": False, "stroke": GREY, "strokeWidth": 2}
        ring = vega.layer(mark, **axes, opacity=opacity(_IS_CLIENT, 0.0), tooltip=None)
        spec = {**vega.data(rows), "layer": [points, ring]}
        over_seeds = "; means over seeds" if len(comparison.seeds) > 1 else ""
        caption = (
            f"Each client's {name} of {', '.join(labels)}, tuned on its validation samples, and the resulting "
            f"{'gain' if is_gain else 'score'}{over_seeds}."
        )
        heading = f"Tuned by clients: {name} of {method}"
        charts.append(Chart(f"tuned-{len(charts)}", heading, caption, finish(spec, 260)))
    return charts


def _tuned_rows(label: str, values: NDArray[np.float64], drawn: NDArray[np.intp], comparison: Comparison) -> list[Row]:
    clients, metric = comparison.clients, comparison.metric
    base = clients.baseline
    outcome = clients.scores[label] if base is None else metric.sign * metric.scale * (clients.scores[label] - base)
    return [
        {"method": label, "client": clients.names[client], "value": values[client], "outcome": outcome[client]}
        for client in drawn.tolist()
        if not (math.isnan(values[client]) or math.isnan(outcome[client]))
    ]


def _draw_holdings(holdings: Holdings) -> Chart:
    rows: list[Row] = [
        {"client": client, "class": name, "samples": int(count)}
        for client, counts in zip(holdings.clients, holdings.counts, strict=True)
        for name, count in zip(holdings.classes, counts, strict=True)
        if count
    ]
    few = len(holdings.clients) <= MAX_NAMED_CLIENTS
    title = None if few else "clients, in the order of the pictures above"
    axis = {"labelLimit": _MAX_LABEL, "labels": few, "ticks": few}
    classes = channel("class", "nominal", sort=holdings.classes, title="class")
    clients = channel("client", "nominal", sort=holdings.clients, title=title, axis=axis)
    along, across = ("y", "x") if few else ("x", "y")
    fields = vega.layer(
        {"type": "rect"},
        **{along: clients, across: classes},
        color=channel("samples", scale={"type": "sqrt", "scheme": "viridis"}, title="samples"),
        opacity=opacity(_CLIENT_FADED),
        tooltip=[tip("client"), tip("class"), tip("samples", "d")],
    )
    spec = {**vega.data(rows), "layer": [fields, _mark_client({"type": "rect"}, **{along: clients})]}
    thinned = len(holdings.clients) < holdings.total
    thinning = f" Shown: {len(holdings.clients)} of {holdings.total} clients." if thinned else ""
    caption = (
        f"Number of samples of each class by client; empty fields are classes that a client does not have.{thinning}"
    )
    rows_down = len(holdings.clients if few else holdings.classes)
    height = min(_ROW * rows_down, 420) + 60
    return Chart("holdings", "Samples of each client by class", caption, finish(spec, height), is_wide=True)


def _draw_relation(relation: Relation, place: int) -> Chart:
    names, weights = relation.clients, relation.weights
    rows: list[Row] = [
        {"method": relation.method, "client": names[i], "other": names[j], "weight": float(weights[i, j])}
        for i, j in np.argwhere(weights > 0).tolist()
    ]
    few = len(names) <= MAX_NAMED_CLIENTS
    axis: Spec = {"labelLimit": _MAX_LABEL} if few else {"labels": False, "ticks": False}
    is_graph = bool(np.isin(weights, (0, 1)).all())
    shared = {"sort": names, "axis": axis, "scale": {"domain": names}}
    attention = channel("weight", scale={"scheme": "viridis"}, title="attention")
    client = channel("client", "nominal", title="client", **shared)
    pairs = vega.layer(
        {"type": "rect"},
        x=channel("other", "nominal", title="other client", **shared),
        y=client,
        color={"value": _GRAPH} if is_graph else attention,
        opacity=opacity(f"{_CLIENT_FADED} || datum.other == client"),
        tooltip=[tip("client"), tip("other"), tip("weight", ".3~g")],
    )
    spec = {**vega.data(rows), "layer": [pairs, _mark_client({"type": "rect"}, y=client)]}
    words = {
        "attention": "Attention of each client (row) to the others (columns) in its last round",
        "neighbours": "The neighbours (columns) of each client (row) after the last round",
        "cluster": "Clients that receive the same model",
    }
    thinning = f" Shown: {len(names)} of {relation.total} clients." if len(names) < relation.total else ""
    caption = f"{words[relation.title]}, by {relation.method}, for the first seed.{thinning}"
    title = {"attention": "Attention", "neighbours": "Neighbours", "cluster": "Clusters"}[relation.title]
    height = max(HEIGHT, min(480, 14 * len(names)))
    return Chart(f"relation-{place}", f"{title}: {relation.method}", caption, finish(spec, height))
