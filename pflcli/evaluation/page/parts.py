"""What the charts of a page share: their data, encodings, scales, and the parameters by which they are linked.

Every chart has the parameters ``method`` and ``client``, null or the name of what is highlighted; the page's script
sets them in all charts at once. Names are data and never part of an expression.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from pflcli.evaluation.page import colours
from pflcli.evaluation.page.content import Content

Spec = dict[str, Any]
Row = dict[str, Any]

FEW = 10
"""Up to so many clients the bottom decile is the worst client."""
ROW = 20
"""Pixels of a row of a chart that has one per client or class."""
HEIGHT = 320
"""Pixels of a chart."""


@dataclass(frozen=True)
class Chart:
    """A picture: its title, what it shows in words (also for those who do not see it), and its specification."""

    key: str
    title: str
    caption: str
    spec: Spec
    is_wide: bool = False
    """whether it takes the whole width of the page"""


def parameters(**values: Any) -> list[alt.Parameter]:
    """Return the parameters that charts share, and more with a value each."""
    return [alt.param(name=name, value=number) for name, number in {"method": None, "client": None, **values}.items()]


IS_METHOD = "method != null && datum.method == method"
IS_CLIENT = "client != null && datum.client == client"
FADED = "method == null || datum.method == method"


def finished(chart: alt.Chart | alt.LayerChart, height: int = HEIGHT, **values: Any) -> Spec:
    """Return the specification of a chart as wide as its place on the page."""
    sized = chart.properties(width="container", height=height).add_params(*parameters(**values))
    spec: Spec = sized.configure_view(stroke=None).to_dict()
    spec["config"] = {"view": {"stroke": None}}
    spec["autosize"] = {"type": "fit", "contains": "padding", "resize": True}
    return spec


def data(rows: Iterable[Row]) -> alt.InlineData:
    """Return rows as data of a chart, numbers with four digits behind the point or four in all."""
    return alt.InlineData(values=[{key: _rounded(cell) for key, cell in row.items()} for row in rows])


def _rounded(cell: Any) -> Any:
    if not isinstance(cell, float | np.floating):
        return cell.item() if isinstance(cell, np.generic) else cell
    number = float(cell)
    if not math.isfinite(number):
        return None
    return round(number, 4) if abs(number) < 100 else float(f"{number:.6g}")


def method_colour(content: Content) -> alt.Color:
    """Return the encoding of methods by colour; the legend stands outside the charts."""
    styles = colours.style(content.methods, content.baseline)
    scale = alt.Scale(domain=[*styles], range=[colour for colour, _ in styles.values()])
    return alt.Color("method:N", scale=scale, legend=None)


def method_dash(content: Content) -> alt.StrokeDash:
    """Return the encoding of methods by dashes, for lines."""
    styles = colours.style(content.methods, content.baseline)
    scale = alt.Scale(domain=[*styles], range=[list(dash) or [1, 0] for _, dash in styles.values()])
    return alt.StrokeDash("method:N", scale=scale, legend=None)


def thickness(usual: float = 1.6) -> Any:
    """Return the encoding of a line's width: wider where its method is highlighted."""
    return alt.condition(IS_METHOD, alt.value(3.5), alt.value(usual))


def opacity(test: str = FADED, faded: float = 0.15) -> Any:
    """Return the encoding of opacity: what is not highlighted fades."""
    return alt.condition(test, alt.value(1.0), alt.value(faded))


def percent_axis(content: Content, **more: Any) -> alt.Axis:
    """Return the axis of a score."""
    return alt.Axis(format=".0%" if content.metric.percent else ".3~g", **more)


def scale_of(numbers: Sequence[float], content: Content) -> alt.Scale:
    """Return the scale of scores: from 0 where they are small, up to what they reach."""
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return alt.Scale()
    low, high = min(finite), max(finite)
    room = 0.05 * (high - low) or 0.05
    low, high = low - room, high + room
    if content.metric.percent:
        low, high = max(low, 0.0), min(high, 1.0)
    return alt.Scale(domain=[round(low, 3), round(high, 3)], nice=False, zero=False)


def heading(content: Content) -> str:
    """Return the name of the metric for an axis."""
    return content.metric.heading
