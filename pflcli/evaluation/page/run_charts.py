"""All charts of a comparison, with those of what its runs add: curves, the partition, from whom clients learn."""

from __future__ import annotations

import altair as alt
import numpy as np

from pflcli.evaluation.page import charts
from pflcli.evaluation.page.content import Content
from pflcli.evaluation.page.parts import (
    HEIGHT,
    ROW,
    Chart,
    Row,
    data,
    finished,
    method_colour,
    method_dash,
    opacity,
    thickness,
)
from pflcli.evaluation.page.runs import Holdings, Relation, Runs


def of(content: Content, runs: Runs) -> list[Chart]:
    """Return all charts of a comparison, in the order of the page."""
    learning = [_curves(content, runs)] if runs.curves else []
    partition = [] if runs.holdings is None else [_holdings(runs.holdings)]
    relations = [_relation(relation, place) for place, relation in enumerate(runs.relations)]
    return [*charts.of(content), *learning, *charts.tuned(content), *partition, *relations]


def _curves(content: Content, runs: Runs) -> Chart:
    rows: list[Row] = [
        {"method": label, "round": number, "accuracy": accuracy}
        for label, points in runs.curves.items()
        for number, accuracy in points
    ]
    chart = (
        alt.Chart(data(rows))
        .mark_line(point=all(len(points) < 30 for points in runs.curves.values()))
        .encode(
            x=alt.X("round:Q", title="round"),
            y=alt.Y(
                "accuracy:Q", title="validation accuracy", axis=alt.Axis(format=".0%"), scale=alt.Scale(zero=False)
            ),
            color=method_colour(content),
            strokeDash=method_dash(content),
            strokeWidth=thickness(),
            opacity=opacity(),
            tooltip=["method:N", "round:Q", alt.Tooltip("accuracy:Q", format=".3f")],
        )
    )
    absent = [label for label in content.methods if label not in runs.curves]
    without_rounds = f" Without rounds of their own: {', '.join(absent)}." if absent else ""
    caption = (
        "Validation accuracy after each measured round: of the clients' own models where a method has them, otherwise "
        f"of the global model. Means over seeds.{without_rounds}"
    )
    return Chart("curves", "Learning curves", caption, finished(chart))


def _holdings(holdings: Holdings) -> Chart:
    rows: list[Row] = [
        {"client": client, "class": name, "samples": int(count)}
        for client, counts in zip(holdings.clients, holdings.counts, strict=True)
        for name, count in zip(holdings.classes, counts, strict=True)
        if count
    ]
    few = len(holdings.clients) <= charts.ROW_PER_CLIENT
    title = None if few else "clients, in the order of the pictures above"
    axis = alt.Axis(labelLimit=140, labels=few, ticks=few)
    classes = {"field": "class", "type": "nominal", "sort": holdings.classes, "title": "class"}
    clients = {"field": "client", "type": "nominal", "sort": holdings.clients, "title": title, "axis": axis}
    across, down = (classes, clients) if few else (clients, classes)
    chart = (
        alt.Chart(data(rows))
        .mark_rect()
        .encode(
            x=alt.X(**across),
            y=alt.Y(**down),
            color=alt.Color("samples:Q", scale=alt.Scale(type="sqrt", scheme="viridis"), title="samples"),
            opacity=opacity("client == null || datum.client == client"),
            tooltip=["client:N", "class:N", "samples:Q"],
        )
    )
    thinned = len(holdings.clients) < holdings.total
    thinning = f" Shown: {len(holdings.clients)} of {holdings.total} clients." if thinned else ""
    caption = (
        f"How many samples of each class every client holds; empty fields are classes that it does not have.{thinning}"
    )
    rows_down = len(holdings.clients if few else holdings.classes)
    height = min(ROW * rows_down, 420) + 60
    spec = finished(chart, height)
    return Chart("holdings", "Samples of each client by class", caption, spec, is_wide=True)


def _relation(relation: Relation, place: int) -> Chart:
    names, weights = relation.clients, relation.weights
    rows: list[Row] = [
        {"method": relation.method, "client": names[i], "other": names[j], "weight": float(weights[i, j])}
        for i, j in np.argwhere(weights > 0).tolist()
    ]
    few = len(names) <= charts.ROW_PER_CLIENT
    axis = alt.Axis(labelLimit=90) if few else alt.Axis(labels=False, ticks=False)
    is_graph = bool(np.isin(weights, (0, 1)).all())
    scale = alt.Scale(scheme="viridis")
    colour = alt.value("#3A7D1F") if is_graph else alt.Color("weight:Q", scale=scale, title="attention")
    chart = (
        alt.Chart(data(rows))
        .mark_rect()
        .encode(
            x=alt.X("other:N", sort=names, axis=axis, title="other client", scale=alt.Scale(domain=names)),
            y=alt.Y("client:N", sort=names, axis=axis, title="client", scale=alt.Scale(domain=names)),
            color=colour,
            opacity=opacity("client == null || datum.client == client || datum.other == client"),
            tooltip=["client:N", "other:N", alt.Tooltip("weight:Q", format=".3~g")],
        )
    )
    words = {
        "attention": "How much attention each client (row) pays to each other (column) in its last round",
        "neighbours": "The neighbours (columns) of each client (row) after the last round",
        "cluster": "Clients that are given the same model",
    }
    thinning = f" Shown: {len(names)} of {relation.total} clients." if len(names) < relation.total else ""
    caption = f"{words[relation.title]}, under {relation.method}, of the first seed.{thinning}"
    title = {"attention": "Attention", "neighbours": "Neighbours", "cluster": "Clusters"}[relation.title]
    spec = finished(chart, max(HEIGHT, min(480, 14 * len(names))))
    return Chart(f"relation-{place}", f"{title}: {relation.method}", caption, spec)
