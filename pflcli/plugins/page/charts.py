"""The charts of a page, linked by the method and the client that the reader highlights.

Every chart has the parameters ``method`` and ``client``: the highlighted name, or null. The page's script sets them in
all charts at once. Names are data and never part of an expression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import registry
from pflcli.core.wording import counted
from pflcli.evaluation.charts import clients as client_charts
from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, LIGHT, Row, Spec, channel
from pflcli.evaluation.compared_runs import Holdings, Relation, Runs
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.stored_comparison import Comparison, metric_value

MAX_NAMED_CLIENTS = 40
"""Up to this number, each client has a row with its name."""

_MAX_NAMED_METHODS = 12
"""Up to this number of methods, their names stand beside their points."""
_ROW = 20
"""Height in pixels of a row of a chart with one row per client or class."""
_HEIGHT = 320
"""Height in pixels of a chart."""
_WIDTH, _WIDE = 560, 1150
"""Width in pixels of the still picture of a chart, and of a chart as wide as the page."""
_MAX_LABEL = 300
"""Width in pixels of the name of a client beside a chart, at most: 40 to 50 letters."""
_LINE = 14
"""Height in pixels of a line of names beside a chart."""
_PLOT_HEIGHT = 260
"""Height in pixels of a chart without its axes, at least."""
_MARGIN = 0.06
"""Margin at both ends of an axis of MB sent, as a share of its length."""
_MAX_SVG_BYTES = 100_000
"""Larger SVG files are replaced by PNG."""

_BETTER, _WORSE, _GRAPH = LIGHT[0], LIGHT[1], LIGHT[6]
_IS_METHOD = "method != null && datum.method == method"
_IS_CLIENT = "client != null && datum.client == client"
_FADED = "method == null || datum.method == method"
_CLIENT_FADED = "client == null || datum.client == client"


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its caption (also the text alternative), and its specification."""

    key: str
    title: str
    caption: str
    spec: Spec
    is_wide: bool = False
    """whether it is as wide as the page"""


def draw(comparison: Comparison, runs: Runs) -> list[Chart]:
    """Return all charts of a comparison, in the order of the page."""
    charts: list[Chart | None] = [_draw_ranked(comparison)]
    if comparison.clients.baseline is not None:
        charts += [_draw_cost(comparison), _draw_dumbbell(comparison)]
    if runs.curves:
        charts.append(_draw_learning(comparison, runs))
    charts += _draw_tuned(comparison)
    if runs.holdings is not None:
        charts.append(_draw_holdings(runs.holdings))
    charts += [_draw_relation(relation, place) for place, relation in enumerate(runs.relations)]
    return [chart for chart in charts if chart is not None]


def render_still(chart: Chart) -> str:
    """Return a chart on white as a data URL: SVG, or PNG if the SVG would be large."""
    sized = {**chart.spec, "width": _WIDE if chart.is_wide else _WIDTH, "background": "white"}
    svg = vega.render(sized, "svg")
    if len(svg) <= _MAX_SVG_BYTES:
        return vega.data_url("image/svg+xml", svg)
    return vega.data_url("image/png", vega.render(sized, "png", scale=1.0))


def _finish(spec: Spec, height: int = _HEIGHT, **parameters: Any) -> Spec:
    """Return a chart that fills the width of its container, with its parameters."""
    values = {"method": None, "client": None, **parameters}
    sized = {
        **spec,
        "width": "container",
        "height": height,
        "params": [{"name": name, "value": value} for name, value in values.items()],
        "config": {"view": {"stroke": None}},
        "autosize": {"type": "fit", "contains": "padding", "resize": True},
    }
    return vega.finish(sized)


def _thickness(usual: float = 1.6) -> Spec:
    """Return the encoding of a line's width: wider where its method is highlighted."""
    return {"condition": {"test": _IS_METHOD, "value": 3.5}, "value": usual}


def _opacity(test: str = _FADED, faded: float = 0.15) -> Spec:
    """Return the encoding of opacity, which fades everything that is not highlighted."""
    return {"condition": {"test": test, "value": 1.0}, "value": faded}


def _mark_client(mark: Spec, **encoding: Any) -> Spec:
    """Return a layer that marks the row or the column of the highlighted client."""
    shape = {"stroke": GREY, "strokeWidth": 2, "fillOpacity": 0, "filled": False, **mark}
    return {"transform": [{"filter": _IS_CLIENT}], "mark": shape, "encoding": encoding}


def _tip(field: str, form: str = "", title: str = "") -> Spec:
    """Return a line of the tooltip: a number in the format ``form``, or a name."""
    more = {**({"format": form} if form else {}), **({"title": title} if title else {})}
    return channel(field, "quantitative" if form else "nominal", **more)


def _draw_ranked(comparison: Comparison) -> Chart:
    clients, methods, baseline, metric = comparison.clients, comparison.methods, comparison.baseline, comparison.metric
    tips = [_tip("method"), _tip("share", ".0f"), _tip("score", ".3f")]
    lines = client_charts.ranked_lines(
        clients.scores, methods, baseline, metric, strokeWidth=_thickness(), opacity=_opacity(), tooltip=tips
    )
    axes = {axis: lines["encoding"][axis] for axis in ("x", "y")}
    axes["y"]["title"] = metric.heading
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
            tooltip=[_tip("client"), *tips],
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
    return Chart("ranked", "All clients, ranked", caption, _finish({"layer": [*decile, lines, dot]}))


def _title_gain(comparison: Comparison) -> str:
    """Return the title of an axis of gains."""
    return f"gain over {comparison.baseline_name}{' (points)' if comparison.metric.percent else ''}"


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
    constant = _choose_constant([row["MB"] for row in rows])
    scale_x, axis = _draw_megabytes(max(row["MB"] for row in rows), constant)
    base: Spec = {
        "x": channel("drawn", title="MB sent, all rounds and links", scale=scale_x, axis=axis),
        "color": vega.method_colour(comparison.methods, comparison.baseline),
        "opacity": _opacity(),
        "tooltip": [
            _tip("method"),
            *(_tip(name, ".2f") for name in ("gain", "low", "high")),
            *(_tip(name, ".4~g") for name in ("MB", "seconds")),
        ],
    }
    few = len(rows) <= _MAX_NAMED_METHODS
    zero = {**vega.level_line(0, "y", strokeDash=[3, 3], opacity=0.6)}
    zero["encoding"] = {"y": channel("level", **y)}
    points = {
        **vega.data(_place_labels(_dodge(rows, constant), scale_y["domain"], few=few)),
        "layer": [
            *_name_points(base if few else {**base, "opacity": _opacity(_IS_METHOD, 0.0), "tooltip": None}, y),
            vega.layer(
                {"type": "rule"}, **base, y=channel("low", **y), y2={"field": "high"}, strokeWidth=_thickness(1.5)
            ),
            vega.layer({"type": "point", "filled": True, "size": 90}, **base, y=channel("gain", **y)),
        ],
    }
    caption = (
        f"Gain of each method over {comparison.baseline_name} against the data it sends. Upper left is best. Bars are "
        f"{tables.format_level(comparison.metrics)} intervals. "
        f"{'' if constant is None else 'The horizontal axis is logarithmic, with 0 at its left end. '}"
        "Methods that send the same amount are drawn side by side."
        + ("" if few else " Highlight a method to see its name.")
    )
    return Chart("cost", "Gain against bytes", caption, _finish({"layer": [zero, points]}))


def _name_points(encoding: Spec, y: Spec) -> list[Spec]:
    """Return the layers with the names of methods, and lines to them.

    Names stand right of the chart, which becomes narrower for them: nothing is cut, whatever the width of the page.
    """
    return [
        vega.layer(
            {"type": "rule", "strokeWidth": 0.75},
            **encoding,
            x2={"value": {"expr": "width + 5"}},
            y=channel("gain", **y),
            y2={"field": "label"},
        ),
        vega.layer(
            {"type": "text", "align": "left", "fontSize": 11},
            **{**encoding, "x": {"value": {"expr": "width + 8"}}},
            y=channel("label", **y),
            text={"field": "name"},
        ),
    ]


def _choose_constant(megabytes: Sequence[float]) -> float | None:
    """Return the number of MB above which an axis is logarithmic; None for an axis that need not be."""
    sent = [number for number in megabytes if number > 0]
    if not sent or max(sent) < 10 * min(sent):
        return None
    return 10.0 ** math.floor(math.log10(min(sent)))


def _to_place(megabytes: float, constant: float | None) -> float:
    """Return the place of a number of MB on an axis that is logarithmic above ``constant``, or linear without one."""
    return megabytes if constant is None else math.log1p(megabytes / constant)


def _to_megabytes(place: float, constant: float | None) -> float:
    """Return the number of MB at a place on the axis, also left of 0."""
    return place if constant is None else math.copysign(constant * math.expm1(abs(place)), place)


def _draw_megabytes(most: float, constant: float | None) -> tuple[Spec, Spec]:
    """Return the scale and the axis of MB sent, from 0 to ``most``, with margins at both ends.

    The ticks of a logarithmic axis are 0, 1, 2, 5, 10 and so on.
    """
    width = _to_place(most, constant) or 1.0
    domain = [float(f"{_to_megabytes(end * width, constant):.4g}") for end in (-_MARGIN, 1 + _MARGIN)]
    if constant is None:
        return {"domain": domain, "nice": False, "zero": False}, {"grid": False, "tickCount": 5, "format": ",.4~f"}
    ticks = [factor * 10.0**power for power in range(-6, 10) for factor in (1, 2, 5)]
    shown = [0, *(tick for tick in ticks if constant <= tick <= domain[1])]
    form = ",.0f" if shown[1] >= 1 else ",.4~f"
    axis = {"values": shown, "format": form, "grid": False, "labelOverlap": "greedy"}
    return {"type": "symlog", "constant": constant, "domain": domain, "nice": False}, axis


def _dodge(rows: list[Row], constant: float | None) -> list[Row]:
    """Return the rows with horizontal positions, where methods that send the same amount are side by side."""
    places = [_to_place(row["MB"], constant) for row in rows]
    width = max(places) or 1.0
    drawn: list[Row] = []
    for number, row in enumerate(rows):
        same = [other for other, place in enumerate(places) if abs(place - places[number]) < 0.01 * width]
        shift = min(0.015, 0.06 / len(same)) * width * (same.index(number) - (len(same) - 1) / 2)
        drawn.append({**row, "drawn": _to_megabytes(places[number] + shift, constant)})
    return drawn


def _place_labels(rows: list[Row], domain: Sequence[float], *, few: bool) -> list[Row]:
    """Return the rows with the name that stands right of the chart and its height on the axis of gains, ``label``.

    Names of ``few`` methods are in the order of gains, and a line apart. Of many methods only one has a name at a time.
    """
    low, high = domain
    line = _LINE / _PLOT_HEIGHT * (high - low)
    labelled = [
        {**row, "name": vega.shorten(row["method"]), "label": row["gain"]}
        for row in sorted(rows, key=lambda row: -row["gain"])
    ]
    if few:
        for above, row in pairwise(labelled):
            row["label"] = min(row["label"], above["label"] - line)
        labelled[-1]["label"] = max(labelled[-1]["label"], low)
        for below, row in pairwise(reversed(labelled)):
            row["label"] = max(row["label"], below["label"] + line)
    return labelled


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
    height = _ROW * len(clients.drawn) + 60 if few else _HEIGHT
    spec = _finish(
        _dumbbell_layers(rows, comparison, few), height, fallback=comparison.chosen, reference=comparison.baseline or ""
    )
    return Chart("dumbbell", "Each client, before and after", caption, spec, is_wide=True)


def _dumbbell_layers(rows: list[Row], comparison: Comparison, few: bool) -> Spec:
    """Return a line per client from the baseline's score to the method's; rows for ``few`` clients, else columns."""
    numbers = [row[key] for row in rows for key in ("score", "baseline")]
    score = {
        "title": f"{comparison.metric.heading}: {comparison.baseline_name} (grey) and the method",
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
        "opacity": _opacity(_CLIENT_FADED, 0.2),
        "tooltip": [
            *(_tip("client"), _tip("method"), _tip("baseline", ".3f"), _tip("score", ".3f"), _tip("gain", "+.3f")),
            _tip("n", ".0f", "samples"),
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


def _draw_learning(comparison: Comparison, runs: Runs) -> Chart:
    count = runs.validation_samples
    rows: list[Row] = []
    for label, curve in runs.curves.items():
        for number, accuracy in curve.points:
            reach = math.sqrt(accuracy * (1 - accuracy) / count) if count else 0.0
            rows.append(
                {"method": label, "round": number, "accuracy": accuracy}
                | {"low": max(accuracy - reach, 0.0), "high": min(accuracy + reach, 1.0)}
            )
    x = channel("round", title="round", axis={"format": "d", "tickMinStep": 1})
    y: Spec = {"title": "validation accuracy", "axis": {"format": ".2~%"}, "scale": {"zero": False}}
    colour = vega.method_colour(comparison.methods, comparison.baseline)
    line = vega.layer(
        {"type": "line", "point": all(len(curve.points) < 30 for curve in runs.curves.values())},
        x=x,
        y=channel("accuracy", **y),
        color=colour,
        strokeDash=vega.method_dash(comparison.methods, comparison.baseline),
        strokeWidth=_thickness(),
        opacity=_opacity(),
        tooltip=[_tip("method"), _tip("round", "d"), *(_tip(name, ".3f") for name in ("accuracy", "low", "high"))],
    )
    band = vega.layer(
        {"type": "area"},
        x=x,
        y=channel("low", **y),
        y2={"field": "high"},
        color=colour,
        opacity={"condition": {"test": _IS_METHOD, "value": 0.3}, "value": 0.08},
        tooltip=None,
    )
    spec = {**vega.data(rows), "layer": [*([band] if count else []), line]}
    return Chart("curves", "Learning curves", _describe_learning(comparison, runs), _finish(spec))


def _describe_learning(comparison: Comparison, runs: Runs) -> str:
    """Return the caption of learning curves: on which samples they were measured, and what was trained by choices."""
    count, seeds = runs.validation_samples, " Means over seeds." if len(comparison.seeds) > 1 else ""
    chose = {label: _choice_in_rounds(comparison.row(label)["method"]) for label, _ in comparison.clients.tuned}
    choices = "; ".join(f"{label} ({what})" for label, what in chose.items() if what and label in runs.curves)
    absent = [label for label in comparison.methods if label not in runs.curves]
    sentences = [
        f"Accuracy on the {f'{count:,} ' if count else ''}validation samples after each measured round, not on the "
        "samples of the table: that of personal models if the method measured it, otherwise that of the global model.",
        f"By the same samples, clients chose while they trained, which raises the curves of {choices}."
        if choices
        else "",
        "The band is one standard error, which counts samples as independent." if count else "",
        f"Without rounds of their own: {', '.join(absent)}." if absent else "",
    ]
    return " ".join(filter(None, sentences)) + seeds


def _choice_in_rounds(method: str) -> str:
    """Return what clients choose by validation samples while they train; empty if nothing."""
    known = registry.exists("methods", method)
    return str(registry.card("methods", method).facts.get("CHOOSES_IN_ROUNDS", "")) if known else ""


def _draw_tuned(comparison: Comparison) -> list[Chart]:
    """Return a chart for each method and option that clients tuned on validation samples, such as its lambda.

    Options of the same name mean different things in different methods. Variants of a method share a chart.
    """
    clients = comparison.clients
    shared: dict[tuple[str, str], list[str]] = {}
    for label, name in clients.tuned:
        shared.setdefault((comparison.row(label).get("method", label), name), []).append(label)
    is_gain = clients.baseline is not None
    title = _title_gain(comparison) if is_gain else comparison.metric.heading
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
            opacity=_opacity(f"({_FADED}) && ({_CLIENT_FADED})", 0.12),
            tooltip=[*(_tip("client"), _tip("method")), *(_tip("value", ".3~g", name), _tip("outcome", ".2f", title))],
        )
        # All points have a ring, which is visible around the client: a layer without points would have no axes.
        mark = {"type": "point", "size": 180, "filled": False, "stroke": GREY, "strokeWidth": 2}
        ring = vega.layer(mark, **axes, opacity=_opacity(_IS_CLIENT, 0.0), tooltip=None)
        spec = {**vega.data(rows), "layer": [points, ring]}
        over_seeds = "; means over seeds" if len(comparison.seeds) > 1 else ""
        caption = (
            f"Each client's {name} of {', '.join(labels)}, tuned on its validation samples, and the resulting "
            f"{'gain' if is_gain else 'score'}{over_seeds}."
        )
        heading = f"Tuned by clients: {name} of {method}"
        charts.append(Chart(f"tuned-{len(charts)}", heading, caption, _finish(spec, 260)))
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
        opacity=_opacity(_CLIENT_FADED),
        tooltip=[_tip("client"), _tip("class"), _tip("samples", "d")],
    )
    spec = {**vega.data(rows), "layer": [fields, _mark_client({"type": "rect"}, **{along: clients})]}
    thinned = len(holdings.clients) < holdings.total
    thinning = f" Shown: {len(holdings.clients)} of {holdings.total} clients." if thinned else ""
    caption = (
        f"Number of samples of each class by client; empty fields are classes that a client does not have.{thinning}"
    )
    rows_down = len(holdings.clients if few else holdings.classes)
    height = min(_ROW * rows_down, 420) + 60
    return Chart("holdings", "Samples of each client by class", caption, _finish(spec, height), is_wide=True)


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
        opacity=_opacity(f"{_CLIENT_FADED} || datum.other == client"),
        tooltip=[_tip("client"), _tip("other"), _tip("weight", ".3~g")],
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
    height = max(_HEIGHT, min(480, 14 * len(names)))
    return Chart(f"relation-{place}", f"{title}: {relation.method}", caption, _finish(spec, height))
