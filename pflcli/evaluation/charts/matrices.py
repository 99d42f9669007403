"""Charts with a row or a column per client: samples by class, neighbours, and attention to other clients.

Each matrix is a single image with a cell per pair, so that thousands of clients cost no more than a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, LIGHT, Row, Spec, channel
from pflcli.evaluation.metrics.client_relations import SLOTS, select_last_round, share_cluster

Array = NDArray[np.floating[Any]]
Graph = NDArray[np.bool_]

_BLUES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
_VIRIDIS = ("#fde725", "#5ec962", "#21918c", "#3b528b", "#440154")
_NOTHING = "#dddddd"
"""The colour of cells without a value, such as the diagonal."""
_WITHIN, _ACROSS, _NEW = "#888888", "#D55E00", "#C04F00"
"""Colours of neighbours within a group and across groups, and of clients that join later."""

_SIDE = 300
"""Pixels of a square panel."""
_MAX_CELLS = 1000
"""Greatest number of cells along a side; with more clients one cell represents several."""
_MAX_IN_ORDER = 120
"""Greatest number of clients that keep their order; more are sorted by their most frequent class."""
_MAX_LABELLED_GROUPS = 5
"""Greatest number of groups whose labels contain the word ``group``."""


@dataclass(frozen=True)
class Order:
    """The order of clients in a chart: ``place`` (m,) has their ids, sorted into groups of ``sizes`` (k,).

    ``names`` (k,) are the names of the groups, ``clients`` (m,) the names of the clients by id; both may be empty.
    """

    place: NDArray[np.intp]
    sizes: NDArray[np.int64]
    names: tuple[str, ...]
    clients: tuple[str, ...] = ()

    @classmethod
    def group_clients(cls, clients: int, cluster: NDArray[np.int64] | None, names: Sequence[str] = ()) -> Order:
        """Order clients with these ``names`` by ``cluster`` (m,) or, if it is unknown, by number as one group."""
        known = tuple(vega.shorten(name) for name in names)
        if cluster is None:
            return cls(np.arange(clients), np.asarray([clients]), (), known)
        groups, sizes = np.unique(cluster, return_counts=True)
        return cls(np.argsort(cluster, kind="stable"), sizes, tuple(map(str, groups)), known)

    @property
    def group(self) -> NDArray[np.int64]:
        """The index of each client's group, in the chart's order, (m,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def borders(self) -> NDArray[np.float64]:
        """The edges of groups along an axis, including those of the chart, (k + 1,)."""
        return np.concatenate([[-0.5], np.cumsum(self.sizes) - 0.5])

    def ticks(self, title: str) -> tuple[str, list[float], list[str]]:
        """Return the title of an axis of clients, the positions of its labels, and the labels."""
        if self.names:
            few = len(self.names) <= _MAX_LABELLED_GROUPS
            places = np.cumsum(self.sizes) - self.sizes / 2 - 0.5
            labels = [f"group {name}" if few else name for name in self.names]
            return title if few else f"{title}, by group", places.tolist(), labels
        count = len(self.place)
        if self.clients and count <= vega.MAX_NAMED:
            return title, [*range(count)], [self.clients[client] for client in self.place]
        step = 1 if count <= 12 else 5 if count <= 40 else max(10, 10 ** (len(str(count)) - 2))
        return title, [*range(0, count, step)], [str(place) for place in range(0, count, step)]


def place_axis(key: str, ticks: tuple[str, list[float], list[str]], count: int, **axis: Any) -> tuple[Spec, Spec]:
    """Return the parameter ``key`` with the labels of an axis, and the encoding of positions along the axis."""
    title, places, labels = ticks
    parameter = {"name": key, "value": labels}
    looked_up = f"{key}[indexof({places}, datum.value)]"
    options = {"values": places, "labelExpr": looked_up, "grid": False, "labelLimit": 130, **axis}
    scale = {"domain": [-0.5, count - 0.5], "nice": False, "zero": False}
    return parameter, {"type": "quantitative", "title": title, "axis": options, "scale": scale}


def _heat_map(
    title: str | None,
    colours: NDArray[np.uint8],
    x: Spec,
    y: Spec,
    *legend: Spec,
    across: Array | Sequence[float] = (),
    down: Array | Sequence[float] = (),
    width: int = _SIDE,
    height: int = _SIDE,
) -> Spec:
    """Return a panel with a cell per entry of ``colours`` (rows, columns, 3), the first row on top.

    ``across`` and ``down`` are positions of lines between columns and rows; ``legend`` has the layers of legends.
    """
    pixels = colours
    for axis, side in enumerate((height, width)):  # edges stay sharp if the image has more pixels than the figure
        pixels = np.repeat(pixels, -(-3 * side // pixels.shape[axis]), axis=axis)
    low, high = x["scale"]["domain"]
    top, bottom = sorted(y["scale"]["domain"])
    cell = {"x": low, "x2": high, "y": top, "y2": bottom, "url": vega.png_url(pixels)}
    image = vega.layer(
        {"type": "image", "aspect": False},
        [cell],
        x={"field": "x", **x},
        x2={"field": "x2"},
        y={"field": "y", **y},
        y2={"field": "y2"},
        url={"field": "url"},
    )
    lines = [_borders(places, axis) for places, axis in ((across, "x"), (down, "y")) if len(places)]
    return {"title": title, "width": width, "height": height, "layer": [image, *legend, *lines]}


def _parse_colours(colours: Sequence[str]) -> NDArray[np.float64]:
    return np.asarray([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours], np.float64)


def _colour_cells(values: Array, stops: Sequence[str], most: float, nothing: str) -> NDArray[np.uint8]:
    """Return the colours (rows, columns, 3) of ``values`` from 0 to ``most``; nan has the colour ``nothing``."""
    share = np.clip(np.nan_to_num(values) / (most or 1.0), 0, 1)
    table = _parse_colours(stops)
    at = np.linspace(0, 1, len(stops))
    colours = np.stack([np.interp(share, at, table[:, part]) for part in range(3)], axis=-1)
    colours[np.isnan(values)] = _parse_colours([nothing])[0]
    return colours.round().astype(np.uint8)


def _colour_bar(stops: Sequence[str], most: float, length: int, **more: Any) -> Spec:
    """Return an invisible layer whose legend is the colour scale."""
    scale = {"domain": [0, most], "range": [*stops], "interpolate": "rgb", **more.pop("scale", {})}
    legend = {"title": None, "gradientLength": length, **more}
    return {
        "data": {"values": [{"value": 0}, {"value": most}]},
        **vega.layer({"type": "point", "opacity": 0}, color=channel("value", scale=scale, legend=legend)),
    }


def _borders(borders: Array | Sequence[float], axis: str) -> Spec:
    mark = {"type": "rule", "color": "black", "strokeWidth": 0.9}
    return {**vega.data({"at": place} for place in borders), "mark": mark, "encoding": {axis: channel("at")}}


def _join_panels(
    panels: Sequence[tuple[list[Spec], Spec]], title: str, direction: str = "hconcat", spacing: int = 30
) -> Spec:
    """Return panels, each with its parameters, as one figure with independent colours and legends."""
    params = [parameter for own, _ in panels for parameter in own]
    resolve = {"scale": dict.fromkeys(("color", "shape", "strokeDash", "size"), "independent")}
    views = [{**spec, "resolve": resolve} if "layer" in spec else spec for _, spec in panels]
    return vega.figure({"params": params, direction: views, "spacing": spacing, "resolve": resolve}, title)


# Samples by client and class


def draw_holdings(
    counts: NDArray[np.int64],
    title: str,
    cluster: NDArray[np.int64] | None = None,
    new: NDArray[np.bool_] | None = None,
    names: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> Spec:
    """Return each client's number of samples, above its samples of each class.

    ``counts`` (m, C) are samples by client and class. Few clients keep their order; many are sorted by their most
    frequent class. Clients of the same ``cluster`` (m,) are side by side. Clients that are ``new`` (m,) have another
    colour. Few clients and classes are labelled with their ``names`` (m,) and ``classes`` (C,).
    """
    clients, labels = counts.shape
    few = clients <= _MAX_IN_ORDER
    order = _order_clients(counts, cluster, by_class=not few)
    counts = counts[order]
    late = np.zeros(clients, dtype=np.bool_) if new is None else new[order]
    width = int(np.clip(110 + 8 * clients, 380, 1000))
    height = int(np.clip(18 * labels, 170, 650))
    sorting = "" if few else ", by most frequent class"
    borders: NDArray[np.float64] = np.empty(0)
    if cluster is not None:
        sizes = np.bincount(cluster)
        borders = np.asarray(np.cumsum(sizes)[:-1] - 0.5, np.float64)
        middles = (np.cumsum(sizes) - sizes / 2 - 0.5).tolist()
        ticks = f"{clients} clients, by group{sorting.replace(', by', ' and')}", middles, [*map(str, range(len(sizes)))]
    else:
        known = Order.group_clients(clients, None, names)
        ticks = known.ticks("client" if few else f"{clients} clients{sorting}")
    across, x = place_axis("clients", ticks, clients, labelOverlap=True)
    class_order = Order.group_clients(labels, None, classes)
    down, y = place_axis("classes", class_order.ticks("class"), labels, labelOverlap=True)
    y["scale"] = {**y["scale"], "domain": [labels - 0.5, -0.5]}
    plain = {**x, "title": None, "axis": {**x["axis"], "labels": False}}
    above = {"width": width, "height": 90, **_size_bars(counts.sum(axis=1), late, plain)}
    cells, bar = _colour_counts(counts, height)
    below = _heat_map(None, cells, x, y, bar, across=borders, width=width, height=height)
    return _join_panels([([across], above), ([down], below)], title, "vconcat", 8)


def draw_labels(
    labels: Sequence[NDArray[np.float64]],
    heading: str,
    title: str,
    new: NDArray[np.bool_] | None = None,
    names: Sequence[str] = (),
) -> Spec:
    """Return each client's number of samples, above the range, quartiles and median of its numbers ``labels``.

    Clients keep their order. Those that are ``new`` (m,) have another colour. ``heading`` is the title of the labels.
    """
    clients = len(labels)
    across, x = place_axis("clients", Order.group_clients(clients, None, names).ticks("client"), clients)
    late = np.zeros(clients, np.bool_) if new is None else new
    plain = {**x, "title": None, "axis": {**x["axis"], "labels": False}}
    size, rows = {"width": int(np.clip(110 + 8 * clients, 380, 1000))}, list_quartiles(labels)
    bars = {**size, "height": 90, **_size_bars(np.asarray([len(each) for each in labels]), late, plain)}
    at = {"x": {"field": "place", **x}}
    scale = {"zero": False, "nice": True}
    below = {
        **vega.data(rows),
        **size,
        "height": 260,
        "layer": [
            vega.layer({"type": "rule"}, **at, y=channel("least", title=heading, scale=scale), y2={"field": "most"}),
            vega.layer({"type": "bar", "size": 7, "color": LIGHT[0]}, **at, y=channel("low"), y2={"field": "high"}),
            vega.layer(
                {"type": "tick", "orient": "horizontal", "color": "black", "size": 11}, **at, y=channel("median")
            ),
        ],
    }
    return _join_panels([([across], bars), ([], below)], title, "vconcat", 8)


def list_quartiles(labels: Sequence[NDArray[np.float64]]) -> list[Row]:
    """Return the place of each client that has numbers, and their least, quartiles, and greatest."""
    keys = ("least", "low", "median", "high", "most")
    quartiles = [(at, np.quantile(each, np.linspace(0, 1, 5))) for at, each in enumerate(labels) if len(each)]
    return [{"place": at, **dict(zip(keys, map(float, row), strict=True))} for at, row in quartiles]


def _order_clients(counts: NDArray[np.int64], cluster: NDArray[np.int64] | None, *, by_class: bool) -> NDArray[np.intp]:
    """Return the ids of clients (m,) from left to right."""
    keys = [np.arange(len(counts))]
    if by_class:
        share = counts.max(axis=1) / np.maximum(counts.sum(axis=1), 1)
        keys += [-share, counts.argmax(axis=1)]
    if cluster is not None:
        keys.append(cluster)
    return np.lexsort(keys)


def _size_bars(totals: NDArray[np.int64], late: NDArray[np.bool_], x: Spec) -> Spec:
    """Return a bar per client with its number of samples, ``totals`` (m,)."""
    kinds = ("trains the global model", "new: joins later")
    gap = 0.4 if len(totals) <= _MAX_IN_ORDER else 0.5
    rows: list[Row] = [
        {"from": place - gap, "to": place + gap, "samples": int(total), "kind": kinds[int(is_late)]}
        for place, (total, is_late) in enumerate(zip(totals, late, strict=True))
    ]
    scale = {"domain": [*kinds], "range": [LIGHT[0], _NEW]}
    legend = {"orient": "top-right", "title": None, "offset": -18, "direction": "horizontal"} if late.any() else None
    return vega.layer(
        {"type": "rect"},
        rows,
        x={"field": "from", **x},
        x2={"field": "to"},
        y=channel("samples", axis={"tickCount": 4}, scale={"domain": [0, 1.05 * max(int(totals.max(initial=1)), 1)]}),
        y2={"datum": 0},
        color=channel("kind", "nominal", scale=scale, legend=legend),
    )


def _colour_counts(counts: NDArray[np.int64], height: int) -> tuple[NDArray[np.uint8], Spec]:
    """Return a cell per class and client, coloured by the square root of its samples, white without, and its scale."""
    most = max(int(counts.max(initial=0)), 1)
    step = -(-len(counts) // (2 * _MAX_CELLS))
    samples = np.maximum.reduceat(counts, np.arange(0, len(counts), step))
    roots = np.where(samples > 0, np.sqrt(samples), np.nan).T
    values = sorted({round(most * share**2) for share in (0, 0.25, 0.5, 0.75, 1)})
    bar = _colour_bar(_VIRIDIS, most, height, scale={"type": "sqrt"}, title="samples", values=values)
    return _colour_cells(roots, _VIRIDIS, float(np.sqrt(most)), "#ffffff"), bar


# Attention


def draw_attention(
    first: Array,
    second: Array,
    rounds: NDArray[np.int64],
    title: str,
    cluster: NDArray[np.int64] | None = None,
    names: Sequence[str] = (),
    *,
    separate: bool = False,
) -> Spec:
    """Return each client's attention to others (layer 1) and to the three models (layer 2), and means by round.

    ``first`` (r, m, m) and ``second`` (r, m, 3) have a row per client and round, 0 if it took no part; ``rounds`` (r,)
    are the numbers of the rounds. The matrices show each client's last attention, with clients of the same true
    ``cluster`` (m,) side by side; few clients are labelled with their ``names`` (m,). A single round has no means. With
    ``separate`` every round has its own matrices, and there are no means.
    """
    order = Order.group_clients(first.shape[1], cluster, names)
    took = second.sum(axis=2) > 0
    if separate:
        rows: list[tuple[list[Spec], Spec]] = []
        for place, number in enumerate(rounds.tolist()):
            one = slice(place, place + 1)
            params, views = _layer_panels(first[one], second[one], took[one], order, f"round {number}, ", str(place))
            rows.append((params, {"hconcat": views, "spacing": 30}))
        return _join_panels(rows, title, "vconcat")
    params, views = _layer_panels(first, second, took, order, "", "")
    if len(rounds) > 1:
        views.append(_mean_curves(first, second, took, rounds, cluster))
    note = "; grey clients took no part" if not took.any(axis=0).all() else ""
    return _join_panels([(params, views[0]), *(([], view) for view in views[1:])], title + note)


def _layer_panels(
    first: Array, second: Array, took: NDArray[np.bool_], order: Order, words: str, key: str
) -> tuple[list[Spec], list[Spec]]:
    """Return the parameters of the axes, with names ending in ``key``, and the matrices of both layers."""
    count = len(order.place)
    others = select_last_round(first, took)[order.place][:, order.place]
    others = np.where(others > 0, others, np.nan)
    slots = select_last_round(second, took)[order.place]
    along, x = place_axis(f"others{key}", order.ticks("other client"), count, labelOverlap=True)
    down, y = place_axis(f"clients{key}", order.ticks("client"), count)
    y["scale"] = {**y["scale"], "domain": [count - 0.5, -0.5]}
    across, z = place_axis(f"slots{key}", ("", [0, 1, 2], [*SLOTS]), len(SLOTS), labelAngle=-30)
    most = float(np.nanmax(others, initial=0)) or 1.0
    cells, mixed = _colour_cells(others, _BLUES, most, _NOTHING), _colour_cells(slots, _BLUES, 1.0, _NOTHING)
    borders, edges = order.borders, np.arange(len(SLOTS) + 1) - 0.5
    bar, scale = _colour_bar(_BLUES, most, _SIDE), _colour_bar(_BLUES, 1.0, _SIDE)
    title = f"{words}layer 1: attention to other clients"
    panels = [
        _heat_map(title, cells, x, y, bar, across=borders, down=borders),
        _heat_map(
            "layer 2: models mixed", mixed, z, {**y, "title": None}, scale, across=edges, down=borders, width=130
        ),
    ]
    resolve = {"scale": {"color": "independent"}}
    return [along, down, across], [{**panel, "resolve": resolve} for panel in panels]


def _mean_curves(
    first: Array, second: Array, took: NDArray[np.bool_], rounds: NDArray[np.int64], cluster: NDArray[np.int64] | None
) -> Spec:
    """Return curves of the mean attention over the clients of each round."""
    count = took.sum(axis=1)
    weight = np.where(count > 0, count, np.nan)
    mean = second.sum(axis=1) / weight[:, None]
    kinds = [f"layer 2: {name}" for name in SLOTS]
    curves = {kind: mean[:, place] for place, kind in enumerate(kinds)}
    colours, dashes = [*LIGHT[: len(SLOTS)]], [[1, 0]] * len(SLOTS)
    if cluster is not None:
        same = share_cluster(cluster)
        curves["layer 1: to its own group"] = (first * same).sum(axis=2).sum(axis=1) / weight
        even = float(same.sum(axis=1).mean() / max(len(cluster) - 1, 1))
        curves["layer 1, if it were even"] = np.where(count > 0, even, np.nan)
        colours, dashes = [*colours, "#000000", GREY], [*dashes, [6, 3], [2, 2]]
    spec = draw_rounds(rounds, curves, colours, dashes, "attention", [0, 1])
    return {"title": "mean over clients", "width": 330, "height": _SIDE, **spec}


def draw_rounds(
    rounds: Sequence[int] | NDArray[np.int64],
    curves: Mapping[str, Array],
    colours: Sequence[str],
    dashes: Sequence[Sequence[int]],
    title: str,
    domain: Sequence[float] | None = None,
    **legend: Any,
) -> Spec:
    """Return a line per curve over the rounds; nan leaves a gap, and rounds without values at both ends are cut."""
    known = np.flatnonzero(~np.isnan(np.stack([*curves.values()])).all(axis=0))
    span = slice(known[0], known[-1] + 1) if len(known) else slice(0, 0)
    numbers = [int(number) for number in rounds[span]]
    rows: list[Row] = [
        {"round": number, "value": value, "curve": name}
        for name, values in curves.items()
        for number, value in zip(numbers, values[span].tolist(), strict=True)
    ]
    options = {"title": None, "symbolType": "stroke", "symbolSize": 300, "symbolStrokeWidth": 2, **legend}
    by_curve = channel("curve", "nominal", legend=options)
    scale = {"domain": [*curves], "range": [*colours]}
    dash = {"domain": [*curves], "range": [[*lengths] for lengths in dashes]}
    limits = {} if domain is None else {"domain": [*domain], "nice": False}
    return vega.layer(
        {"type": "line", "point": {"size": 22} if len(numbers) <= 30 else False, "strokeWidth": 1.8},
        rows,
        x=channel("round", axis={"tickMinStep": 1, "format": "d"}, scale={"zero": False, "nice": False, "padding": 8}),
        y=channel("value", title=title, scale=limits, axis={"tickCount": 6}),
        color={**by_curve, "scale": scale},
        strokeDash={**by_curve, "scale": dash},
    )


# Neighbours


def draw_neighbours(
    last: Graph,
    rows: Sequence[dict[str, float]],
    title: str,
    cluster: NDArray[np.int64] | None = None,
    names: Sequence[str] = (),
) -> Spec:
    """Return the neighbours in the ``last`` round (m, m), with a row per client, and curves of ``rows`` over rounds.

    Few clients are labelled with their ``names`` (m,). Clients of the same true ``cluster`` (m,) are side by side, and
    neighbours across clusters have another colour. A single row has no curves.
    """
    order = Order.group_clients(len(last), cluster, names)
    graph = last[np.ix_(order.place, order.place)]
    params, matrix = _neighbour_matrix(graph, order)
    panels: list[tuple[list[Spec], Spec]] = [(params, matrix)]
    if len(rows) > 1:
        panels.append(([], _match_curves(rows, known=cluster is not None)))
    return _join_panels(panels, title)


def classify_pairs(graph: Graph, order: Order) -> NDArray[np.uint8]:
    """Return a cell per pair of clients: 0 without an edge, 1 within a group, 2 across groups.

    With many clients a cell represents several pairs and has the highest of their values.
    """
    count = len(graph)
    step = -(-count // _MAX_CELLS)
    kinds: NDArray[np.uint8] = graph.astype(np.uint8) + (graph & (order.group[:, None] != order.group))
    for axis in (0, 1):
        kinds = np.maximum.reduceat(kinds, np.arange(0, count, step), axis=axis)
    return kinds


def _neighbour_matrix(graph: Graph, order: Order) -> tuple[list[Spec], Spec]:
    """Return the matrix of neighbours and the parameters of its axes."""
    count = len(graph)
    kinds = classify_pairs(graph, order)
    step = -(-count // len(kinds))
    colours = _parse_colours(["#ffffff", _WITHIN, _ACROSS])[kinds].astype(np.uint8)
    across, x = place_axis("neighbours", order.ticks("neighbour"), count, labelOverlap=True)
    down, y = place_axis("clients", order.ticks("client"), count, labelOverlap=True)
    y["scale"] = {**y["scale"], "domain": [count - 0.5, -0.5]}
    legends = []
    if order.names:
        words = ["same group", "another group"]
        scale = {"domain": words, "range": [_WITHIN, _ACROSS]}
        legend = {
            "title": None,
            "orient": "bottom",
            "direction": "horizontal",
            "symbolType": "square",
            "symbolOpacity": 1,
        }
        legends.append(
            vega.layer(
                {"type": "point", "opacity": 0, "filled": True},
                ({"kind": word} for word in words),
                color=channel("kind", "nominal", scale=scale, legend=legend),
            )
        )
    note = f" (a point: {step} x {step} clients)" * (step > 1)
    title, borders = f"neighbours of each client{note}", order.borders
    return [across, down], _heat_map(title, colours, x, y, *legends, across=borders, down=borders)


def _match_curves(rows: Sequence[dict[str, float]], *, known: bool) -> Spec:
    """Return precision and recall by round, or the number of neighbours where the true clusters are not known."""
    keys = ("precision", "recall") if known else ("neighbours",)
    values = {key: np.asarray([row[key] for row in rows], np.float64) for key in keys}
    colours = (LIGHT[0], LIGHT[2]) if known else ("#000000",)
    numbers = [int(row["round"]) for row in rows]
    below = {"orient": "bottom", "direction": "horizontal"} if known else {"disable": True}
    title = "mean over clients" if known else "neighbours of a client, mean"
    spec = draw_rounds(numbers, values, colours, [[1, 0]] * len(keys), title, [0, 1] if known else None, **below)
    heading = "neighbours against true groups" if known else "number of neighbours"
    return {"title": heading, "width": 330, "height": _SIDE, **spec}
