"""What pictures share: colours, an order of clients by group with borders between groups, and the PNG itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's palette, which readers with colour-blindness can tell apart."""

MARKS = ("o", "^", "s", "D")
"""What groups with the same colour differ in."""

_NUMBERED, _WORDS = 40, 5
"""Greatest number of clients for which this module places the numbers, and of groups that have the word ``group``."""


_DPI = 130

MOST_NAMED = 30
"""Greatest number of clients or classes that are labelled by their names."""


def short(name: str) -> str:
    """Return a name that fits beside an axis."""
    return name if len(name) <= 16 else f"{name[:15]}…"


@dataclass(frozen=True)
class Order:
    """The order of clients in a picture: ``place`` (m,) are their ids, group after group of ``sizes`` (k,).

    ``names`` (k,) are names of the groups, ``clients`` (m,) names of the clients by id; both may be empty.
    """

    place: NDArray[np.intp]
    sizes: NDArray[np.int64]
    names: tuple[str, ...]
    clients: tuple[str, ...] = ()

    @classmethod
    def of(cls, clients: int, cluster: NDArray[np.int64] | None, names: Sequence[str] = ()) -> Order:
        """Order clients, called ``names``, by ``cluster`` (m,) where it is known, otherwise by number, as one group."""
        known = tuple(short(name) for name in names)
        if cluster is None:
            return cls(np.arange(clients), np.asarray([clients]), (), known)
        groups, sizes = np.unique(cluster, return_counts=True)
        return cls(np.argsort(cluster, kind="stable"), sizes, tuple(map(str, groups)), known)

    @property
    def group(self) -> NDArray[np.int64]:
        """The place of each client's group, in the picture's order (m,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


def draw(size: tuple[float, float], widths: list[float], rows: int = 1) -> tuple[Any, Any]:
    """Return a figure without a display and its axes, (rows, columns)."""
    drawing = figure(size)
    return drawing, drawing.subplots(rows, len(widths), width_ratios=widths, squeeze=False)


def figure(size: tuple[float, float]) -> Any:
    """Return an empty figure without a display, of this width and height in inches."""
    # Without pyplot, which takes longer to import than these.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def png(drawing: Any) -> bytes:
    """Return the figure as a PNG."""
    memory = io.BytesIO()
    drawing.canvas.print_png(memory, metadata={"Software": None})  # savefig would go through all panels once more
    return memory.getvalue()


def name_clients(axis: Any, order: Order, label: str, *, along: str) -> None:
    """Label the clients of an image along ``x`` or ``y`` by groups, names or numbers, with borders between groups."""
    line, target = (axis.axvline, axis.xaxis) if along == "x" else (axis.axhline, axis.yaxis)
    ends, few = np.cumsum(order.sizes), len(order.names) <= _WORDS
    for end in ends[:-1]:
        line(end - 0.5, color="black", lw=0.9)
    if order.names:
        names = [f"group {name}" if few else name for name in order.names]
        turn = 90 if along == "y" and few else 0
        target.set_ticks(ends - order.sizes / 2 - 0.5, names, rotation=turn, va="center" if along == "y" else "top")
        target.set_tick_params(length=0)
    elif order.clients and len(order.place) <= MOST_NAMED:
        turn = 90 if along == "x" and any(len(name) > 2 for name in order.clients) else 0
        target.set_ticks(np.arange(len(order.place)), [order.clients[at] for at in order.place], rotation=turn)
    elif len(order.place) <= _NUMBERED:
        target.set_ticks(np.arange(0, len(order.place), 1 if len(order.place) <= 12 else 5))
    target.set_label_text(label if few else f"{label}, by group")


def plain(axis: Any) -> None:
    """Leave a curve's panel its left and lower edge, and a light grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.xaxis.get_major_locator().set_params(integer=True)
