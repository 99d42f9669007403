"""Charts over rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import GREY, LIGHT, Row, Spec, channel

Array = NDArray[np.floating[Any]]

_REMARK = {"anchor": "end", "fontSize": 11, "offset": 4}
"""Position of a remark above a panel."""


def draw_collapse(history: Mapping[str, Array], rounds: NDArray[np.int64], title: str) -> Spec:
    """Return three stacked curves over rounds: the spectral radius of W_V, the largest bias, and the accuracy.

    ``history`` has values (r,) of ``rho``, ``largest``, ``validation`` (-1 where unknown) and ``rejected`` uploads for
    the ``rounds`` (r,). A radius above 1 amplifies biases. Rounds with rejected uploads are marked.
    """
    bias = np.where(np.isfinite(history["largest"]), history["largest"], np.nan)
    right = np.where(history["validation"] < 0, np.nan, history["validation"])
    is_wide = np.nanmax(bias, initial=0) > 100 * max(np.nanmin(bias, initial=np.inf), 1e-12)
    scales: list[Spec] = [
        {"zero": False, "padding": 8},
        {"type": "log"} if is_wide else {"zero": False, "padding": 8},
        {"domain": [0, 1]},
    ]
    if is_wide:
        bias = np.where(bias > 0, bias, np.nan)
    titles = ("spectral radius of W_V", "largest bias sent", "validation accuracy")
    limits = [int(rounds[0]) - 0.5, int(rounds[-1]) + 0.5]
    panels: list[Spec] = []
    for place, values in enumerate((history["rho"], bias, right)):
        rows: list[Row] = [
            {"round": int(number), "value": float(f"{value:.6g}")}
            for number, value in zip(rounds, values.tolist(), strict=True)
            if math.isfinite(value)
        ]
        axis = {"format": ".2~e"} if place == 1 and is_wide else {}
        line = {
            "data": {"values": rows},
            **vega.layer(
                {
                    "type": "line",
                    "color": LIGHT[place],
                    "strokeWidth": 1.8,
                    "point": {"size": 22, "color": LIGHT[place]} if len(rounds) <= 30 else False,
                },
                x=channel(
                    "round",
                    title="round" if place == 2 else None,
                    scale={"domain": limits, "nice": False},
                    axis={"tickMinStep": 1, "format": "d"},
                ),
                y=channel("value", title=titles[place], scale=scales[place], axis=axis),
            ),
        }
        panels.append({"width": 480, "height": 160, "layer": [line]})
    panels[0]["layer"].append(vega.level_line(1, "y", color=GREY, strokeDash=[5, 4]))
    panels[0]["title"] = {"text": "dashed: 1; above it, biases grow", **_REMARK}
    if len(lost := rounds[history["rejected"] > 0]):
        panels[2]["title"] = {"text": "\u00d7 uploads rejected", **_REMARK}
        panels[2]["layer"].append(
            vega.layer(
                {"type": "point", "shape": "M-.5,-.5L.5,.5M.5,-.5L-.5,.5", "color": "black", "size": 40},
                ({"round": int(number), "value": 0.0} for number in lost),
                x=channel("round"),
                y=channel("value"),
            )
        )
    return vega.figure({"vconcat": panels, "spacing": 16}, title)
