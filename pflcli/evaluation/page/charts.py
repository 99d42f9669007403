"""The charts of a comparison as Vega-Lite specifications: its clients, and what they chose."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.page import colours
from pflcli.evaluation.page.content import Content
from pflcli.evaluation.page.cost_chart import cost
from pflcli.evaluation.page.parts import (
    FADED,
    FEW,
    HEIGHT,
    IS_CLIENT,
    ROW,
    Chart,
    Row,
    data,
    finished,
    heading,
    method_colour,
    method_dash,
    opacity,
    percent_axis,
    scale_of,
    thickness,
)
from pflcli.evaluation.page.sentences import over
from pflcli.wording import counted

_QUANTILES = 200
"""Beyond so many clients a curve goes through quantiles."""
ROW_PER_CLIENT = 40
"""Up to so many clients are a row each, with their names."""

BETTER, WORSE = colours.LIGHT[0], colours.LIGHT[1]


def of(content: Content) -> list[Chart]:
    """Return the charts of clients' scores, and of what they cost."""
    charts: list[Chart | None] = [_ranked(content)]
    if content.clients.baseline is not None:
        charts += [cost(content), _dumbbell(content)]
    return [chart for chart in charts if chart is not None]


def _ranked(content: Content) -> Chart:
    clients, lower = content.clients, content.metric.lower_is_better
    lines: list[Row] = []
    dots: list[Row] = []
    for label in content.methods:
        scores = clients.scores[label]
        scored = np.flatnonzero(~np.isnan(scores))
        ranked = scored[np.argsort(-scores[scored] if lower else scores[scored], kind="stable")]
        share = 100 * (np.arange(len(ranked)) + 0.5) / max(len(ranked), 1)
        places = np.linspace(0, len(ranked) - 1, min(len(ranked), _QUANTILES + 1)).round().astype(int)
        lines += [{"method": label, "share": share[i], "score": scores[ranked[i]]} for i in places]
        rank = dict(zip(ranked.tolist(), share.tolist(), strict=True))
        dots += [
            {"method": label, "client": clients.names[client], "share": rank[client], "score": scores[client]}
            for client in clients.drawn.tolist()
            if client in rank
        ]
    axes = {
        "x": alt.X("share:Q", title="clients, worst served first (%)", scale=alt.Scale(domain=[0, 100])),
        "y": alt.Y(
            "score:Q",
            title=heading(content),
            axis=percent_axis(content),
            scale=scale_of([row["score"] for row in lines], content),
        ),
    }
    tips = [alt.Tooltip("method:N"), alt.Tooltip("share:Q", format=".0f"), alt.Tooltip("score:Q", format=".3f")]
    curve = (
        alt.Chart(data(lines))
        .mark_line(clip=True)
        .encode(
            **axes,
            color=method_colour(content),
            strokeDash=method_dash(content),
            strokeWidth=thickness(),
            opacity=opacity(),
            order=alt.Order("share:Q"),
            tooltip=tips,
        )
    )
    dot = (
        alt.Chart(data(dots))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(**axes, color=method_colour(content), tooltip=[alt.Tooltip("client:N"), *tips])
        .transform_filter(IS_CLIENT)
    )
    count = len(clients.names)
    rule = alt.Chart(data([{"share": 10}])).mark_rule(strokeDash=[3, 3], opacity=0.5).encode(x="share:Q")
    decile = " The dashed line marks the bottom decile: a tenth of the clients lie left of it." if count > FEW else ""
    thinned = f" Curves go through {_QUANTILES + 1} quantiles." if count > _QUANTILES else ""
    caption = (
        f"Each method's {counted(count, 'client')}, ranked by {heading(content)} from the worst served (left) to the "
        f"best; every line is sorted by itself.{decile}{thinned}"
    )
    return Chart("ranked", "All clients, ranked", caption, finished(alt.layer(*[rule] * (count > FEW), curve, dot)))


def _dumbbell(content: Content) -> Chart | None:
    clients, baseline, sign = content.clients, content.clients.baseline, -1 if content.metric.lower_is_better else 1
    assert baseline is not None
    rows: list[Row] = []
    for label in content.methods:
        if label == content.baseline:
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
    few = len(clients.drawn) <= ROW_PER_CLIENT
    numbers = [row[key] for row in rows for key in ("score", "baseline")]
    score_axis = {"axis": percent_axis(content), "scale": scale_of(numbers, content)}
    layers = _dumbbell_layers(rows, content, few, score_axis)
    drawn_clients = (
        f"{len(clients.drawn)} of {len(clients.names)} clients, at even distances in that order" * clients.is_thinned
    )
    caption = (
        f"One {'row' if few else 'column'} per client, the worst served by {over(content)} first. The grey mark is "
        f"{over(content)}; the line leads to the method, blue where it gains and orange where it loses. Highlight "
        f"another method to see its gains.{f' Shown: {drawn_clients}.' if drawn_clients else ''}"
    )
    height = ROW * len(clients.drawn) + 60 if few else HEIGHT
    spec = finished(layers, height, fallback=content.chosen, reference=content.baseline or "")
    return Chart("dumbbell", "Each client, before and after", caption, spec, is_wide=True)


def _dumbbell_layers(rows: list[Row], content: Content, few: bool, score_axis: dict[str, Any]) -> alt.LayerChart:
    title = f"{heading(content)}: {over(content)} (grey) and the method"
    order = alt.EncodingSortField(field="place", order="ascending")
    along: dict[str, Any]
    if few:
        client: Any = alt.Y("client:N", sort=order, title=None, axis=alt.Axis(labelLimit=140))
        along = {"y": client}
        ends = {"x": alt.X("baseline:Q", title=title, **score_axis), "x2": alt.X2("score:Q")}
        points = [{"x": alt.X(f"{key}:Q", title=title, **score_axis)} for key in ("baseline", "score")]
    else:
        ends_at = alt.Scale(domain=[-0.5, len(content.clients.drawn) - 0.5], nice=False)
        client = alt.X(
            "place:Q",
            scale=ends_at,
            title="clients, worst served first",
            axis=alt.Axis(labels=False, ticks=False, grid=False),
        )
        along = {"x": client}
        ends = {"y": alt.Y("baseline:Q", title=title, **score_axis), "y2": alt.Y2("score:Q")}
        points = [{"y": alt.Y(f"{key}:Q", title=title, **score_axis)} for key in ("baseline", "score")]
    tips = [
        alt.Tooltip("client:N"),
        alt.Tooltip("method:N"),
        alt.Tooltip("baseline:Q", format=".3f"),
        alt.Tooltip("score:Q", format=".3f"),
        alt.Tooltip("gain:Q", format="+.3f"),
        alt.Tooltip("n:Q", title="samples", format=".0f"),
    ]
    colour = alt.condition("datum.gain >= 0", alt.value(BETTER), alt.value(WORSE))
    fade = opacity("client == null || datum.client == client", 0.2)
    base = alt.Chart(data(rows)).transform_filter(
        "datum.method == (method == null || method == reference ? fallback : method)"
    )
    column = f"width / {len(content.clients.drawn)}"  # pixels of a client
    line = base.mark_rule(strokeWidth=2.5 if few else alt.ExprRef(f"min(2.5, 0.6 * {column})")).encode(
        **along, **ends, color=colour, opacity=fade, tooltip=tips
    )
    tick = base.mark_tick(
        thickness=3,
        size=12 if few else alt.ExprRef(f"min(8, 0.75 * {column})"),
        orient="vertical" if few else "horizontal",
        color=colours.GREY,
    ).encode(**along, **points[0], opacity=fade, tooltip=tips)
    dot = base.mark_point(filled=True, size=60 if few else alt.ExprRef(f"min(30, pow(0.8 * {column}, 2))")).encode(
        **along, **points[1], color=colour, opacity=fade, tooltip=tips
    )
    return alt.layer(line, tick, dot)


def tuned(content: Content) -> list[Chart]:
    """Return a chart for each value that clients chose by validation samples, such as lambda."""
    clients, sign = content.clients, -1 if content.metric.lower_is_better else 1
    charts: list[Chart] = []
    for name in dict.fromkeys(name for _, name in clients.tuned):
        rows: list[Row] = []
        for (label, other), values in clients.tuned.items():
            if other == name:
                rows += _tuned_rows(label, values, clients.drawn, content, sign)
        if not rows:
            continue
        is_gain = clients.baseline is not None
        unit = " (points)" if content.metric.percent else ""
        title = f"gain over {over(content)}{unit}" if is_gain else heading(content)
        chart = (
            alt.Chart(data(rows))
            .mark_point(filled=True, size=60)
            .encode(
                x=alt.X("value:Q", title=name),
                y=alt.Y("outcome:Q", title=title),
                color=method_colour(content),
                opacity=opacity(f"({FADED}) && (client == null || datum.client == client)", 0.12),
                tooltip=[
                    alt.Tooltip("client:N"),
                    alt.Tooltip("method:N"),
                    alt.Tooltip("value:Q", title=name, format=".3~g"),
                    alt.Tooltip("outcome:Q", title=title, format=".2f"),
                ],
            )
        )
        methods = ", ".join(label for label, other in clients.tuned if other == name)
        over_seeds = "; means over seeds" if len(content.seeds) > 1 else ""
        caption = (
            f"Each client's {name}, chosen by its validation samples under {methods}, and what came of it{over_seeds}."
        )
        charts.append(Chart(f"tuned-{len(charts)}", f"What clients chose: {name}", caption, finished(chart, 260)))
    return charts


def _tuned_rows(
    label: str, values: NDArray[np.float64], drawn: NDArray[np.intp], content: Content, sign: int
) -> list[Row]:
    clients, scale = content.clients, 100 if content.metric.percent else 1
    base = clients.baseline
    outcome = clients.scores[label] if base is None else sign * scale * (clients.scores[label] - base)
    return [
        {"method": label, "client": clients.names[client], "value": values[client], "outcome": outcome[client]}
        for client in drawn.tolist()
        if not (math.isnan(values[client]) or math.isnan(outcome[client]))
    ]
