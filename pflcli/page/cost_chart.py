"""The chart of gains against bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from pflcli.page.content import Content, value
from pflcli.page.parts import IS_METHOD, Chart, Row, data, finished, method_colour, opacity, thickness
from pflcli.page.sentences import over

_LABELLED = 12
"""Up to so many methods are named beside their points."""


def cost(content: Content) -> Chart | None:
    """Return what each method gains and sends; None where fewer than two methods have a gain."""
    scale = 100 if content.metric.percent else 1
    rows: list[Row] = []
    for row in content.rows:
        gain = row["metrics"].get("gain", {})
        sent = value(row, "megabytes")
        if gain.get("value") is None or math.isnan(sent):
            continue
        low, high = gain.get("interval") or (gain["value"], gain["value"])
        rows.append(
            {
                "method": row["label"],
                "MB": sent,
                "gain": scale * gain["value"],
                "low": scale * low,
                "high": scale * high,
                "seconds": value(row, "seconds"),
            }
        )
    if len(rows) < 2:
        return None
    unit = " (points)" if content.metric.percent else ""
    ends = [0.0, *(row[key] for row in rows for key in ("low", "high"))]
    room = 0.05 * (max(ends) - min(ends)) or 1.0
    scale_y = alt.Scale(domain=[float(f"{min(ends) - room:.4g}"), float(f"{max(ends) + room:.4g}")], nice=False)
    y = {"title": f"gain over {over(content)}{unit}, 95 % interval", "scale": scale_y}
    scale_x, ticks = _logarithmic([row["MB"] for row in rows])
    form = ",.0f" if ticks[1] >= 1 else ",.4~f"
    axis = alt.Axis(values=ticks, format=form, grid=False, labelOverlap="greedy")
    x = alt.X("MB:Q", title="MB sent, all rounds and links", scale=scale_x, axis=axis)
    tips = [
        alt.Tooltip("method:N"),
        *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("gain", "low", "high")),
        *(alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("MB", "seconds")),
    ]
    base = alt.Chart(data(_beside(rows))).encode(x=x, color=method_colour(content), opacity=opacity(), tooltip=tips)
    zero = alt.Chart(data([{"gain": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(y=alt.Y("gain:Q", **y))
    rule = base.mark_rule().encode(y=alt.Y("low:Q", **y), y2="high:Q", strokeWidth=thickness(1.5))
    dot = base.mark_point(filled=True, size=90).encode(y=alt.Y("gain:Q", **y))
    few = len(rows) <= _LABELLED
    names = [
        base.mark_text(align=align, dx=dx, fontSize=11)
        .encode(y=alt.Y("gain:Q", **y), text="method:N")
        .transform_filter(f"datum.side == '{side}'" if few else f"datum.side == '{side}' && {IS_METHOD}")
        for side, align, dx in (("right", "left", 9), ("left", "right", -9))
    ]
    caption = (
        f"What each method gains over {over(content)}, and what it sends for it. Upper left is best. Bars are 95 % "
        "intervals; the horizontal axis is logarithmic, with nothing sent at its left end."
        + ("" if few else " Highlight a method to see its name.")
    )
    return Chart("cost", "Gain against bytes", caption, finished(alt.layer(zero, rule, dot, *names)))


def _logarithmic(numbers: Sequence[float]) -> tuple[alt.Scale, list[float]]:
    """Return a scale that is logarithmic but begins at 0, with room at both ends, and its ticks: 0, 1, 2, 5, 10..."""
    above = [number for number in numbers if number > 0] or [1.0]
    low, high = min(above), max(above)
    constant = 10 ** math.floor(math.log10(low))
    ticks = [factor * 10.0**power for power in range(-6, 10) for factor in (1, 2, 5)]
    room = 0.12 * math.log1p(high / constant)
    domain = [-constant * math.expm1(room), constant * math.expm1(math.log1p(high / constant) + 1.5 * room)]
    scale = alt.Scale(type="symlog", constant=constant, domain=[float(f"{end:.4g}") for end in domain], nice=False)
    return scale, [0, *(tick for tick in ticks if constant <= tick <= domain[1])]


def _beside(rows: list[Row]) -> list[Row]:
    """Say on which side of its point a method's name stands, so that names of near neighbours do not overlap."""
    gains = [row["gain"] for row in rows]
    near = 0.06 * (max(row["high"] for row in rows) - min(row["low"] for row in rows))
    sides: list[str] = []
    for place, row in enumerate(rows):
        occupied = {
            sides[other]
            for other in range(place)
            if abs(gains[other] - row["gain"]) < near and math.isclose(rows[other]["MB"], row["MB"], rel_tol=0.3)
        }
        sides.append("left" if "right" in occupied and "left" not in occupied else "right")
    return [{**row, "side": side} for row, side in zip(rows, sides, strict=True)]
