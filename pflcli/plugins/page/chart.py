"""What charts of a page share: their form, highlighting, axes of costs, and the names of methods beside their points.

Every chart has the parameters ``method`` and ``client``: the highlighted name, or null. The page's script sets them in
all charts at once. Names are data and never part of an expression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import Row, Spec, channel

MAX_NAMED_METHODS = 12
"""Up to this number of methods, their names stand beside their points."""
HEIGHT = 320
"""Height in pixels of a chart."""
_LINE = 14
"""Height in pixels of a line of names beside a chart."""
_PLOT_HEIGHT = 260
"""Height in pixels of a chart without its axes, at least."""
_MARGIN = 0.06
"""Margin at both ends of an axis of costs, as a share of its length."""

IS_METHOD = "method != null && datum.method == method"
FADED = "method == null || datum.method == method"


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its caption (also the text alternative), and its specification."""

    key: str
    title: str
    caption: str
    spec: Spec
    is_wide: bool = False
    """whether it is as wide as the page"""
    choice: str = ""
    """what a reader chooses to see this one of several charts in the same place; empty for a chart of its own"""


def finish(spec: Spec, height: int = HEIGHT, **parameters: Any) -> Spec:
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


def thickness(usual: float = 1.6) -> Spec:
    """Return the encoding of a line's width: wider where its method is highlighted."""
    return {"condition": {"test": IS_METHOD, "value": 3.5}, "value": usual}


def opacity(test: str = FADED, faded: float = 0.15) -> Spec:
    """Return the encoding of opacity, which fades everything that is not highlighted."""
    return {"condition": {"test": test, "value": 1.0}, "value": faded}


def tip(field: str, form: str = "", title: str = "") -> Spec:
    """Return a line of the tooltip: a number in the format ``form``, or a name."""
    more = {**({"format": form} if form else {}), **({"title": title} if title else {})}
    return channel(field, "quantitative" if form else "nominal", **more)


def name_points(encoding: Spec, field: str, y: Spec, *, few: bool) -> list[Spec]:
    """Return the layers with the names of methods, and lines to them from their points at ``field``.

    Names stand right of the chart, which becomes narrower for them: nothing is cut, whatever the width of the page. Of
    many methods only the highlighted one has a name.
    """
    shown = encoding if few else {**encoding, "opacity": opacity(IS_METHOD, 0.0), "tooltip": None}
    return [
        vega.layer(
            {"type": "rule", "strokeWidth": 0.75},
            **shown,
            x2={"value": {"expr": "width + 5"}},
            y=channel(field, **y),
            y2={"field": "label"},
        ),
        vega.layer(
            {"type": "text", "align": "left", "fontSize": 11},
            **{**shown, "x": {"value": {"expr": "width + 8"}}},
            y=channel("label", **y),
            text={"field": "name"},
        ),
    ]


def place_labels(rows: Sequence[Row], field: str, domain: Sequence[float], *, few: bool) -> list[Row]:
    """Return the rows with the name that stands right of the chart and its height on the vertical axis, ``label``.

    Names of ``few`` methods are in the order of ``field``, and a line apart. Of many methods only one has a name at a
    time.
    """
    low, high = domain
    line = _LINE / _PLOT_HEIGHT * (high - low)
    labelled = [
        {**row, "name": vega.shorten(row["method"]), "label": row[field]}
        for row in sorted(rows, key=lambda row: -row[field])
    ]
    if few:
        for above, row in pairwise(labelled):
            row["label"] = min(row["label"], above["label"] - line)
        labelled[-1]["label"] = max(labelled[-1]["label"], low)
        for below, row in pairwise(reversed(labelled)):
            row["label"] = max(row["label"], below["label"] + line)
    return labelled


def choose_constant(costs: Sequence[float]) -> float | None:
    """Return the cost above which an axis is logarithmic; None for an axis that need not be."""
    paid = [number for number in costs if number > 0]
    if not paid or max(paid) < 10 * min(paid):
        return None
    return 10.0 ** math.floor(math.log10(min(paid)))


def to_place(cost: float, constant: float | None) -> float:
    """Return the place of a cost on an axis that is logarithmic above ``constant``, or linear without one."""
    return cost if constant is None else math.log1p(cost / constant)


def to_cost(place: float, constant: float | None) -> float:
    """Return the cost at a place on the axis, also left of 0."""
    return place if constant is None else math.copysign(constant * math.expm1(abs(place)), place)


def draw_costs(most: float, constant: float | None) -> Spec:
    """Return the scale and the axis of costs, from 0 to ``most``, with margins at both ends.

    The ticks of a logarithmic axis are 0, 1, 2, 5, 10 and so on.
    """
    width = to_place(most, constant) or 1.0
    domain = [float(f"{to_cost(end * width, constant):.4g}") for end in (-_MARGIN, 1 + _MARGIN)]
    if constant is None:
        axis = {"grid": False, "tickCount": 5, "format": ",.4~f"}
        return {"scale": {"domain": domain, "nice": False, "zero": False}, "axis": axis}
    ticks = [factor * 10.0**power for power in range(-6, 10) for factor in (1, 2, 5)]
    shown = [0, *(tick for tick in ticks if constant <= tick <= domain[1])]
    form = ",.0f" if shown[1] >= 1 else ",.4~f"
    axis = {"values": shown, "format": form, "grid": False, "labelOverlap": "greedy"}
    return {"scale": {"type": "symlog", "constant": constant, "domain": domain, "nice": False}, "axis": axis}


def explain_costs(constant: float | None) -> str:
    """Return the sentence of a caption on the axis of costs; empty for a linear one."""
    return "" if constant is None else "The horizontal axis is logarithmic, with 0 at its left end. "
