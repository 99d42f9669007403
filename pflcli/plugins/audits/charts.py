"""Charts of an audit: ROC curves of attacks, and the exposure of each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, LIGHT, Row, Spec, channel

_MAX_POINTS = 2000
"""Greatest number of points of a ROC curve; longer curves are thinned towards their right end."""


def draw_roc(
    curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    names: Sequence[str],
    areas: NDArray[np.float64],
    attack: str,
) -> Spec:
    """Return the ROC curve of each attack and, beside them, the AUC of each client under ``attack``.

    ``curves`` has false- and true-positive rates (k,) by attack; ``areas`` (m, 3) are AUC and interval of the clients
    ``names`` (m,), the most exposed first. The axes of the curves are logarithmic, because attacks matter at few false
    positives (Carlini et al. 2022).
    """
    least = min([0.5 / (len(false) or 1) for false, _ in curves.values()], default=1e-3)
    least = float(f"{max(min(least, 1e-2), 1e-5):.6g}")
    rows: list[Row] = [{"attack": "guessing", "false": value, "true": value} for value in (least, 1.0)]
    for name, (false, true) in curves.items():
        places = _choose_points(false, true)
        rows += [
            {"attack": name, "false": max(float(false[at]), least), "true": max(float(true[at]), least)}
            for at in places
        ]
    domain = ["guessing", *curves]
    colours = [GREY, *(LIGHT[number % len(LIGHT)] for number in range(len(curves)))]
    legend = {"title": None, "symbolType": "stroke", "symbolSize": 250, "symbolStrokeWidth": 2}
    by_attack = channel(
        "attack", "nominal", sort=domain, legend={**legend, "orient": "bottom-right", "fillColor": "white"}
    )
    scale = {"type": "log", "domain": [least, 1], "nice": False}
    axis = {"format": ".3~%", "values": [10.0**power for power in range(-5, 1)]}
    left = {
        "title": "All clients together",
        "width": 330,
        "height": 330,
        "data": {"values": [{**row, "place": place} for place, row in enumerate(rows)]},
        **vega.layer(
            {"type": "line", "strokeWidth": 1.6, "clip": True},
            x=channel("false", title="non-members taken for members", scale=scale, axis=axis),
            y=channel("true", title="members recognized", scale=scale, axis=axis),
            order=channel("place"),
            color={**by_attack, "scale": {"domain": domain, "range": colours}},
            strokeDash={**by_attack, "scale": {"domain": domain, "range": [[5, 4], *[[1, 0]] * len(curves)]}},
        ),
    }
    resolve = {"legend": {"color": "independent", "strokeDash": "independent"}}
    panels = [left, _area_panel(areas, attack, names)]
    params = [{"name": "clients", "value": _labels(names)}]
    return vega.figure({"params": params, "hconcat": panels, "spacing": 30, "resolve": resolve})


def _choose_points(false: NDArray[np.float64], true: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of the points to draw: the corners of the curve, thinned towards the right if many."""
    corner = np.ones(len(false), np.bool_)
    for part in (false, true):
        step = np.diff(part) == 0
        corner[1:-1] &= ~(step[:-1] & step[1:])
    places = np.flatnonzero(corner)
    if len(places) > _MAX_POINTS:
        spaced = np.geomspace(1, len(places), _MAX_POINTS).round().astype(int) - 1
        places = places[np.unique(spaced)]
    return places


def _area_panel(areas: NDArray[np.float64], attack: str, names: Sequence[str]) -> Spec:
    has_names = len(names) <= vega.MAX_NAMED
    rows: list[Row] = [
        {"client": place, "auc": auc, "low": low, "high": high} for place, (auc, low, high) in enumerate(areas.tolist())
    ]
    labels = {"labelExpr": "clients[datum.value]", "values": [*range(len(areas))], "labelAngle": -90, "grid": False}
    numbers = {"grid": False, "tickMinStep": 1, "format": "d"}
    x = channel(
        "client",
        title=None if has_names else "clients, most exposed first",
        axis=labels if has_names else numbers,
        scale={"domain": [-0.7, max(len(areas), 1) - 0.3], "nice": False},
    )
    y = {"title": "AUC, with 95 % interval", "scale": {"domain": [0, 1]}}
    return {
        "title": f"Clients under the attack '{attack}'",
        "width": 420,
        "height": 330,
        **vega.data(rows),
        "layer": [
            vega.level_line(0.5, "y", color=GREY, strokeDash=[5, 4]),
            vega.layer(
                {"type": "rule", "color": LIGHT[0], "opacity": 0.85}, x=x, y=channel("low", **y), y2={"field": "high"}
            ),
            vega.layer(
                {"type": "point", "filled": True, "color": LIGHT[0], "size": 26, "opacity": 0.85},
                x=x,
                y=channel("auc", **y),
            ),
        ],
    }


def _labels(names: Sequence[str]) -> list[str]:
    return [vega.shorten(name) for name in names] if len(names) <= vega.MAX_NAMED else []
