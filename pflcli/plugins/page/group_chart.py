"""The chart of scores by group of samples: a dot for each method and group, with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflcli.evaluation.charts import vega
from pflcli.evaluation.charts.vega import LIGHT, Row, Spec, channel
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.stored_comparison import Comparison, metric_value
from pflcli.plugins.page.chart import HEIGHT, Chart, finish, opacity, thickness, tip

GROUPS = "groups"
"""The beginning of the keys of these charts, and of the name of the file with their numbers."""
_MAX_LABEL = 300
"""Width in pixels of the name of a method beside a chart, at most."""


def draw(comparison: Comparison, place: int, entry: Mapping[str, Any]) -> Chart | None:
    """Return the gain of each method in each group of samples with its interval; without gains, the scores."""
    metric, column = comparison.metric, str(entry["column"])
    name = "gain" if any("gain" in row["metrics"] for row in entry["rows"]) else metric.name
    rows: list[Row] = []
    for row in entry["rows"]:
        found = row["metrics"].get(name, {})
        if found.get("value") is None or (name == "gain" and row["label"] == comparison.baseline):
            continue
        low, high = found.get("interval") or (found["value"], found["value"])
        numbers = dict(zip(("value", "low", "high"), (found["value"], low, high), strict=True))
        rows.append(
            {
                "method": row["label"],
                "group": row["group"],
                "samples": row["samples"],
                **{key: metric.scale * number for key, number in numbers.items()},
                "accuracy": metric.scale * metric_value(row, metric.name),
            }
        )
    if not rows:
        return None
    order = [label for label in comparison.methods if any(row["method"] == label for row in rows)]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    gain = f"gain over {comparison.baseline_name}"
    title = f"{gain}{' (points)' * metric.percent}" if name == "gain" else metric.heading
    x: Spec = {"title": title, "scale": {"zero": name == "gain"}}
    shared: Spec = {
        "y": channel("method", "nominal", sort=order, title=None, axis={"labelLimit": _MAX_LABEL}),
        "yOffset": channel("group", "nominal", sort=groups, scale={"paddingOuter": 0.4}),
        "color": channel("group", "nominal", sort=groups, title=column, scale={"range": [*LIGHT]}),
        "opacity": opacity(),
        "tooltip": [
            *(tip("method"), tip("group", title=column), tip("samples", ".4~g")),
            *(tip(key, ".2f") for key in ("value", "low", "high")),
            tip("accuracy", ".2f", metric.heading),
        ],
    }
    layers = [
        *([vega.level_line(0, "x", strokeDash=[3, 3], opacity=0.6)] * (name == "gain")),
        vega.layer({"type": "rule"}, **shared, x=channel("low", **x), x2={"field": "high"}, strokeWidth=thickness(1.5)),
        vega.layer({"type": "point", "filled": True, "size": 60}, **shared, x=channel("value", **x)),
    ]
    what = f"G{gain[1:]}" if name == "gain" else metric.heading.capitalize()
    bars = f" Bars are {tables.format_level(comparison.metrics)} intervals." if name == "gain" else ""
    caption = f"{what} of each method on the samples of each group by {column}.{bars}"
    height = max(HEIGHT // 2, (12 * len(groups) + 10) * len(order) + 60)
    spec = finish({**vega.data(rows), "layer": layers}, height)
    title = f"{'Gain' if name == 'gain' else metric.heading.capitalize()} by {column}"
    return Chart(f"{GROUPS}-{place}", title, caption, spec, is_wide=True)
