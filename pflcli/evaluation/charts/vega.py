"""Parts of all Vega-Lite charts: escaping of names, data, encodings, colours of methods, and rendering.

A chart is a Vega-Lite specification, a dictionary of JSON values. ``renderer.py`` renders it without a browser or a
display, and has the JavaScript that draws it on a page. Every specification passes through ``finish``. Altair
would write the same specifications with as much code, but needs seconds for the rows of several hundred clients.
"""

from __future__ import annotations

import base64
import io
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.metrics.metric import Metric
from pflcli.evaluation.charts import renderer

Spec = dict[str, Any]
Row = dict[str, Any]
Scores = NDArray[np.float64]

FORMATS = ("png", "svg", "pdf")
"""Formats that a specification can be rendered in."""

LIGHT = ("#0072B2", "#C04F00", "#00805E", "#A8487F", "#8F6A00", "#5B4FBF", "#3A7D1F", "#B3344C")
"""Colours on white, each with a contrast of at least 3:1."""
DARK = ("#56B4E9", "#FF9142", "#2BC79A", "#E79BC4", "#F0C14B", "#A99BFF", "#8FD16B", "#FF8A9B")
"""The same eight colours for a dark background, in the same order."""
GREY, GREY_ON_DARK = "#666666", "#A6A6A6"
"""The colour of the baseline."""
PAPER, NIGHT = "#ffffff", "#15181d"
"""The light and the dark background."""
DASHES = ((), (6, 3), (2, 2), (8, 2, 2, 2), (12, 4))
"""Dashes of lines; the first is none."""
_FIRST_DASH = (0, 0, 0, 0, 1, 2, 3, 4)
"""By colour, the dashes of the first method that has it: to the colour-blind, later colours look like earlier ones."""
SHAPES = ("circle", "triangle-up", "square", "diamond")
"""Shapes of points: the first for as many groups as there are colours, then the second, and so on."""

QUANTILES = 200
"""A curve over more clients than this goes through quantiles."""
MAX_NAMED = 30
"""Greatest number of clients or classes whose names label an axis."""

_SCALE = 1.6
"""Pixels of a PNG per pixel of the specification."""
_CONFIG: Spec = {
    "font": "sans-serif",
    "view": {"stroke": None},
    "title": {"fontWeight": "normal", "fontSize": 13},
    "axis": {"titleFontWeight": "normal", "titleFontSize": 12, "labelFontSize": 11, "gridColor": "#e6e6e6"},
    "legend": {"titleFontWeight": "normal", "titleFontSize": 11, "labelFontSize": 11, "labelLimit": 400},
}
_PROPERTIES = {
    *("__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__", "__proto__", "constructor"),
    *("hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString", "valueOf"),
}
"""Properties of every JavaScript object; Vega mistakes a name like these for a function."""


def escape_name(name: str) -> str:
    """Return a name that charts can show: unprintable characters are escaped, such as ``\\x00``.

    A control character would crash the renderer, and a name like ``constructor`` would break the chart; such a name
    gets a no-break space at its end.
    """
    if not name.isprintable():
        name = "".join(
            letter
            if letter.isprintable() or unicodedata.category(letter) == "Zs"
            else letter.encode("unicode_escape").decode()
            for letter in name
        )
    return f"{name}\u00a0" if name in _PROPERTIES else name


def shorten(name: str) -> str:
    """Return a name of at most 16 characters, to fit beside an axis."""
    return name if len(name) <= 16 else f"{name[:15]}…"


def _escape_strings(node: Any) -> Any:
    """Return a part of a specification with every string, in data, titles and scales, escaped."""
    if isinstance(node, str):
        return escape_name(node)
    if isinstance(node, Mapping):
        return {key: _escape_strings(item) for key, item in node.items()}
    return [_escape_strings(item) for item in node] if isinstance(node, list | tuple) else node


def finish(spec: Spec) -> Spec:
    """Return a specification that is safe to render, with every string escaped."""
    finished: Spec = _escape_strings(spec)
    return finished


def figure(spec: Spec, title: str = "") -> Spec:
    """Return a finished figure on white, with a ``title`` above all panels."""
    over = {"title": {"text": title, "anchor": "middle", "fontSize": 14}} if title else {}
    return finish({**over, **spec, "background": "white", "padding": 8, "config": _CONFIG})


def render(spec: Spec, form: str = "png", scale: float = _SCALE) -> bytes:
    """Render a specification as ``png``, ``svg`` or ``pdf``, as ``renderer.request`` does."""
    # As text, because vl-convert sorts the keys of dictionaries.
    return renderer.request(form, json.dumps(finish(spec), allow_nan=False), scale)


@cache
def bundle_javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script from the installed vl-convert."""
    return renderer.request(renderer.BUNDLE).decode().replace("</script", "<\\/script")


def encode(spec: Spec) -> bytes:
    """Return a specification as the content of a file."""
    return (json.dumps(spec, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n").encode()


def data(rows: Iterable[Row]) -> Spec:
    """Return rows as data of a chart; numbers are rounded to four decimal places, from 100 on to six digits."""
    return {"data": {"values": [{key: _round_cell(cell) for key, cell in row.items()} for row in rows]}}


def layer(mark: Spec, rows: Iterable[Row] | None = None, /, **encoding: Any) -> Spec:
    """Return a layer that draws a ``mark`` per row, with an ``encoding`` by channel.

    Without ``rows`` it draws the data of the view that contains it.
    """
    return {**({} if rows is None else data(rows)), "mark": mark, "encoding": encoding}


def _round_cell(cell: Any) -> Any:
    if not isinstance(cell, float | np.floating):
        return cell.item() if isinstance(cell, np.generic) else cell
    number = float(cell)
    if not math.isfinite(number):
        return None
    return round(number, 4) if abs(number) < 100 else float(f"{number:.6g}")


def channel(field: str, kind: str = "quantitative", /, **more: Any) -> Spec:
    """Return the encoding of a field; ``kind`` is a Vega-Lite type."""
    return {"field": field, "type": kind, **more}


def score_axis(metric: Metric, **more: Any) -> Spec:
    """Return the axis of a score, with as many digits as its ticks need to differ."""
    return {"format": ".2~%" if metric.percent else ".6~g", **more}


def score_scale(numbers: Sequence[float], metric: Metric) -> Spec:
    """Return a scale for these scores with a margin of 5 %; nan values are ignored."""
    finite = [float(number) for number in numbers if math.isfinite(number)]
    if not finite:
        return {}
    low, high = min(finite), max(finite)
    room = 0.05 * (high - low) or 0.05
    low, high = low - room, high + room
    if metric.percent:
        low, high = max(low, 0.0), min(high, 1.0)
    return {"domain": [round(low, 3), round(high, 3)], "nice": False, "zero": False}


def method_styles(methods: Sequence[str], baseline: str | None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the colour on white and the dashes of each method; the baseline is grey and dashed."""
    compared = [label for label in methods if label != baseline]
    by_method = {
        label: (LIGHT[colour], DASHES[(_FIRST_DASH[colour] + block) % len(DASHES)])
        for place, label in enumerate(compared)
        for block, colour in [divmod(place, len(LIGHT))]
    }
    return {label: by_method.get(label, (GREY, (8, 3))) for label in methods}


def method_colour(methods: Sequence[str], baseline: str | None, legend: Spec | None = None) -> Spec:
    """Return the encoding of methods by colour."""
    chosen = method_styles(methods, baseline)
    scale = {"domain": [*chosen], "range": [colour for colour, _ in chosen.values()]}
    return channel("method", "nominal", scale=scale, legend=legend)


def method_dash(methods: Sequence[str], baseline: str | None, legend: Spec | None = None) -> Spec:
    """Return the encoding of methods by dashes, for lines."""
    chosen = method_styles(methods, baseline)
    scale = {"domain": [*chosen], "range": [list(dash) or [1, 0] for _, dash in chosen.values()]}
    return channel("method", "nominal", scale=scale, legend=legend)


def dark_colours() -> dict[str, str]:
    """Return the colour for a dark background by colour on white."""
    return {**dict(zip(LIGHT, DARK, strict=True)), GREY: GREY_ON_DARK}


def legend_below(labels: Iterable[str], width: float, **more: Any) -> Spec:
    """Return a legend below a panel, with as many columns as fit into its ``width`` in pixels."""
    widest = max(map(len, labels), default=1)
    return {"orient": "bottom", "title": None, "columns": max(1, int(width / (6.2 * widest + 32))), **more}


def level_line(value: float, axis: str, **mark: Any) -> Spec:
    """Return a line across a panel at a value on the axis ``x`` or ``y``."""
    return layer({"type": "rule", **mark}, [{"level": value}], **{axis: channel("level")})


def png_url(pixels: NDArray[np.uint8]) -> str:
    """Return an image (h, w, 3) or (h, w, 4) as the data URL of a PNG."""
    from PIL import Image

    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, "PNG")
    return data_url("image/png", memory.getvalue())


def data_url(media_type: str, content: bytes) -> str:
    """Return content as a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
