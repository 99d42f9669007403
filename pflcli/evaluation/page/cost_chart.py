"""The chart of gains against bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from pflcli.evaluation.page.content import Content, value
from pflcli.evaluation.page.parts import IS_METHOD, Chart, Row, data, finished, method_colour, opacity, thickness
from pflcli.evaluation.page.sentences import over

_FEW_METHODS = 12
"""Up to so many methods are named beside their points."""


def cost(content: Content) -> Chart | None:
    """Return what each method gains and sends; None where fewer than two methods have a gain."""
    scale = 100 if content.metric.percent else 1
    rows: list[Row] = []
    for row in content.rows:
        gain = row["metrics"].get("gain", {})
        megabytes = value(row, "megabytes")
        if gain.get("value") is None or math.isnan(megabytes):
            continue
        low, high = gain.get("interval") or (gain["value"], gain["value"])
        rows.append(
            {
                "method": row["label"],
                "MB": megabytes,
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
    constant = 10 ** math.floor(math.log10(min((row["MB"] for row in rows if row["MB"] > 0), default=1.0)))
    scale_x, ticks = _logarithmic([row["MB"] for row in rows], constant)
    form = ",.0f" if ticks[1] >= 1 else ",.4~f"
    axis = alt.Axis(values=ticks, format=form, grid=False, labelOverlap="greedy")
    x = alt.X("drawn:Q", title="MB sent, all rounds and links", scale=scale_x, axis=axis)
    tips = [
        alt.Tooltip("method:N"),
        *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("gain", "low", "high")),
        *(alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("MB", "seconds")),
    ]
    base = alt.Chart(data(_labelled(_dodged(rows, constant)))).encode(
        x=x, color=method_colour(content), opacity=opacity(), tooltip=tips
    )
    zero = alt.Chart(data([{"gain": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(y=alt.Y("gain:Q", **y))
    rule = base.mark_rule().encode(y=alt.Y("low:Q", **y), y2="high:Q", strokeWidth=thickness(1.5))
    dot = base.mark_point(filled=True, size=90).encode(y=alt.Y("gain:Q", **y))
    few = len(rows) <= _FEW_METHODS
    names = [
        base.mark_text(align=align, dx=dx, fontSize=11)
        .encode(x="edge:Q", y=alt.Y("gain:Q", **y), text="method:N")
        .transform_filter(f"datum.side == '{side}'" if few else f"datum.side == '{side}' && {IS_METHOD}")
        for side, align, dx in (("right", "left", 9), ("left", "right", -9))
    ]
    caption = (
        f"What each method gains over {over(content)}, and what it sends for it. Upper left is best. Bars are 95 % "
        "intervals; the horizontal axis is logarithmic, with nothing sent at its left end, and methods "
        "that send the same stand side by side." + ("" if few else " Highlight a method to see its name.")
    )
    return Chart("cost", "Gain against bytes", caption, finished(alt.layer(zero, rule, dot, *names)))


def _logarithmic(numbers: Sequence[float], constant: float) -> tuple[alt.Scale, list[float]]:
    """Return a scale that is logarithmic beyond a ``constant`` and begins at 0, with room at both ends, and its ticks.

    Ticks are 0, 1, 2, 5, 10 and so on.
    """
    width = math.log1p(max(numbers) / constant) or 1.0
    ticks = [factor * 10.0**power for power in range(-6, 10) for factor in (1, 2, 5)]
    domain = [-constant * math.expm1(0.12 * width), constant * math.expm1(1.28 * width)]
    scale = alt.Scale(type="symlog", constant=constant, domain=[float(f"{end:.4g}") for end in domain], nice=False)
    return scale, [0, *(tick for tick in ticks if constant <= tick <= domain[1])]


def _dodged(rows: list[Row], constant: float) -> list[Row]:
    """Give every method the place at which it is drawn: those that send the same stand side by side, as a group."""
    width = math.log1p(max(row["MB"] for row in rows) / constant) or 1.0
    drawn: list[Row] = []
    for row in rows:
        same = [other for other in rows if math.isclose(other["MB"], row["MB"], rel_tol=0.01, abs_tol=0.01 * constant)]
        shift = min(0.015, 0.06 / len(same)) * width * (same.index(row) - (len(same) - 1) / 2)
        place = math.log1p(row["MB"] / constant) + shift
        position = math.copysign(constant * math.expm1(abs(place)), place)
        drawn.append({**row, "drawn": position, "group": rows.index(same[0])})
    return drawn


def _labelled(rows: list[Row]) -> list[Row]:
    """Say where a method's name stands: right of its group, or left of it where a near neighbour's stands right."""
    near = 0.05 * (max(row["high"] for row in rows) - min(row["low"] for row in rows))
    labelled: list[Row] = []
    for row in sorted(rows, key=lambda row: -row["gain"]):
        group = [other for other in rows if other["group"] == row["group"]]
        neighbours = [
            other["side"]
            for other in labelled
            if other["group"] == row["group"] and abs(other["gain"] - row["gain"]) < near
        ]
        side = "left" if neighbours.count("right") > neighbours.count("left") else "right"
        edge = (max if side == "right" else min)(other["drawn"] for other in group)
        labelled.append({**row, "side": side, "edge": edge})
    return labelled
