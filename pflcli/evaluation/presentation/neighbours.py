"""A picture of the neighbours of each client, and how well they match the true clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.presentation import canvas
from pflcli.evaluation.presentation.canvas import COLOURS, MARKS, Order

Graph = NDArray[np.bool_]

_FEW = 60
"""Up to so many clients a graph can be made out."""

_FIELDS = 1000
"""Greatest number of cells along a side; with more clients one cell is for several."""

_WITHIN, _ACROSS = "#888888", "#D55E00"
"""Colours of neighbours within a group and across groups."""

_GROUPS = tuple(colour for colour in COLOURS if colour != _ACROSS)


def neighbours(
    last: Graph,
    rows: Sequence[dict[str, float]],
    title: str,
    cluster: NDArray[np.int64] | None = None,
    names: Sequence[str] = (),
) -> bytes:
    """Return a PNG: neighbours in the ``last`` round (m, m), a row per client, and curves of the ``rows`` by round.

    Few clients are also drawn as a graph, and labelled by their ``names`` (m,). Clients of a true ``cluster`` (m,) are
    side by side, and neighbours across clusters have a colour of their own. There are no curves of a single row.
    """
    order = Order.of(len(last), cluster, names)
    graph = last[np.ix_(order.place, order.place)]
    few, curves = len(graph) <= _FEW, len(rows) > 1
    figure, axes = canvas.draw((0.6 + 4.5 * (1 + few + curves), 4.9), [1.0] * (1 + few + curves))
    figure.suptitle(title, fontsize=11)
    panels = list(axes[0])
    _field(panels.pop(0), graph, order)
    if few:
        _circle(panels.pop(0), graph, order)
    if curves:
        _curves(panels.pop(0), rows, known=cluster is not None)
    return canvas.png(figure)


def _across(order: Order) -> Graph:
    """Return for each pair of clients, in the picture's order, whether their groups differ (m, m)."""
    return np.asarray(order.group[:, None] != order.group)


def _field(axis: Any, graph: Graph, order: Order) -> None:
    """Draw a row per client, a coloured cell for each of its neighbours."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    side, count = -(-len(graph) // _FIELDS), len(graph)
    kinds = graph.astype(np.uint8) + (graph & _across(order))
    for axis_of in (0, 1):  # a cell of several clients has the colour of the rarest kind in it
        kinds = np.maximum.reduceat(kinds, np.arange(0, count, side), axis=axis_of)
    where = (-0.5, count - 0.5, count - 0.5, -0.5)
    colours = ListedColormap(["white", _WITHIN, _ACROSS])
    axis.imshow(kinds, cmap=colours, vmin=0, vmax=2, interpolation="nearest", extent=where)
    axis.set(title="who has whom" + f" (a point: {side} x {side} clients)" * (side > 1))
    canvas.name_clients(axis, order, "neighbour", along="x")
    canvas.name_clients(axis, order, "client", along="y")
    if order.names:
        patches = [Patch(color=_WITHIN, label="of its group"), Patch(color=_ACROSS, label="of another group")]
        axis.legend(handles=patches, frameon=False, fontsize=8.5, ncols=2, **_BELOW)


_BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}


def _circle(axis: Any, graph: Graph, order: Order) -> None:
    """Draw clients on a circle, groups apart from one another, and a line between neighbours."""
    from matplotlib.collections import LineCollection

    count, gap = len(graph), 1.0 if len(order.sizes) > 1 else 0.0
    turn = 2 * np.pi * (np.arange(count) + gap * order.group) / (count + gap * len(order.sizes))
    at = np.stack([np.sin(turn), np.cos(turn)], axis=1)
    joined = np.triu(graph | graph.T)
    # A line that crosses groups lies above the others, of which there may be many.
    for apart, colour, depth in ((False, _WITHIN, 1), (True, _ACROSS, 2)):
        ends = np.argwhere(joined & (_across(order) == apart))
        axis.add_collection(LineCollection(list(at[ends]), colors=colour, linewidths=0.8, alpha=0.55, zorder=depth))
    small = count > 30
    for place in range(len(order.sizes)):
        own = order.group == place
        style = {"color": _GROUPS[place % len(_GROUPS)], "marker": MARKS[place // len(_GROUPS) % len(MARKS)]}
        name = f"group {order.names[place]}" if order.names else None
        axis.scatter(
            *at[own].T, s=40 if small else 70, zorder=3, label=name, edgecolors="white", linewidths=0.6, **style
        )
    for (x, y), client in zip(at * 1.1, order.place, strict=True):
        name = order.clients[client] if order.clients and len(graph) <= canvas.MOST_NAMED else str(client)
        axis.text(x, y, name, ha="center", va="center", fontsize=6.5 if small else 8, color="#444444")
    axis.set(xlim=(-1.22, 1.22), ylim=(-1.22, 1.22), aspect="equal", title="neighbours, in either direction")
    axis.set_axis_off()
    if order.names:
        columns = min(len(order.names), 4)
        axis.legend(frameon=False, fontsize=8.5, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, 0.0))


def _curves(axis: Any, rows: Sequence[dict[str, float]], *, known: bool) -> None:
    """Draw precision and recall by round, or the number of neighbours where the true clusters are not known."""
    rounds = [row["round"] for row in rows]
    mark = "o" if len(rows) <= 30 else ""
    for key, colour in (("precision", COLOURS[0]), ("recall", COLOURS[2])) if known else (("neighbours", "black"),):
        axis.plot(rounds, [row[key] for row in rows], color=colour, lw=1.8, marker=mark, ms=3.5, label=key)
    axis.set(xlabel="round", title="neighbours against true groups" if known else "neighbours of a client, mean")
    if known:
        axis.set(ylim=(-0.02, 1.02), ylabel="mean over clients")
        axis.legend(frameon=False, fontsize=8.5, ncols=2, **_BELOW)
    else:
        axis.set_ylim(bottom=0)
    canvas.plain(axis)
