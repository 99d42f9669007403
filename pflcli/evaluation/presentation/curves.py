"""Curves of a sweep: accuracy along one axis, a line for each value of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.evaluation.presentation import canvas

Row = Mapping[str, Any]

_PANELS = {"accuracy": "test accuracy", "bottom_decile": "test accuracy of the bottom decile"}
_USUAL = {"capacity": 1.0, "k": 10.0, "sigma": 1.0}
"""Where the axes stand that the picture does not show, or the swept value nearest to it."""
_LINES = 8
"""So many lines can be told apart; of more, evenly spaced ones are drawn."""


def sweep(rows: Sequence[Row], axes: Mapping[str, Sequence[float]], along: str) -> bytes:
    """Return a PNG: the accuracy and its bottom decile along an axis of the grid.

    ``rows`` hold a value for each of ``axes`` and the metrics; lambda is tuned, a row of its own, but where it is the
    axis itself: then each line's tuned lambda is drawn as a level. The next axis that varies gives the lines.
    """
    import matplotlib as mpl
    from matplotlib.ticker import PercentFormatter

    across = next((a for a, values in axes.items() if len(values) > 1 and a not in (along, "lambda")), None)
    at = {axis: min(axes[axis], key=lambda value: _distance(axis, value)) for axis in _USUAL}
    lines = [None] if across is None else _spaced(axes[across])
    figure, ((*panels,),) = canvas.draw((11.4, 4.2), [1] * len(_PANELS))
    colours = mpl.colormaps["viridis"]
    for panel, (metric, label) in zip(panels, _PANELS.items(), strict=True):
        for place, value in enumerate(lines):
            fixed = {**at, **({} if across is None or value is None else {across: value})}
            colour = colours(0.9 * place / max(len(lines) - 1, 1))
            name = "lambda tuned per client" if value is None or across is None else f"{across} {value:g}"
            line = [row for row in rows if all(row[a] == v for a, v in fixed.items() if a != along)]
            tuned = [row for row in line if row["lambda"] == "tuned"]
            if along == "lambda":
                shared = [row for row in line if row["lambda"] != "tuned"]
                name = "lambda shared by all clients" if value is None else name
                panel.plot(
                    [row["lambda"] for row in shared], [row[metric] for row in shared], "o-", **_style(colour, name)
                )
                panel.axhline(tuned[0][metric], color=colour, ls=":", lw=1.4)
            else:
                panel.plot([row[along] for row in tuned], [row[metric] for row in tuned], "o-", **_style(colour, name))
        if along != "lambda" and 0.0 in axes["lambda"]:
            alone = next(row[metric] for row in rows if row["lambda"] == 0.0)
            panel.axhline(alone, color="#777777", ls="--", lw=1.2, label="global model")
        panel.set(xlabel=along, ylabel=label)
        if along == "sigma" and max(axes[along]) > 50 * min(axes[along]):
            panel.set_xscale("log")
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside right center")
    others = [f"{axis} {value:g}" for axis, value in at.items() if axis not in (along, across)]
    title = [*others, "dotted: lambda tuned per client" if along == "lambda" else "lambda tuned per client"]
    figure.suptitle("kNN-Per, " + ", ".join(title), fontsize=11)
    return canvas.png(figure)


def _style(colour: Any, label: str) -> dict[str, Any]:
    return {"color": colour, "label": label, "lw": 1.8, "ms": 4}


def _distance(axis: str, value: float) -> float:
    """Return the distance of a value from the usual one; scales are compared by their ratio."""
    return abs(math.log(value / _USUAL[axis])) if axis == "sigma" else abs(value - _USUAL[axis])


def _spaced(values: Sequence[float]) -> list[float]:
    last, count = len(values) - 1, min(len(values), _LINES)
    return [values[round(place * last / max(count - 1, 1))] for place in range(count)]
