"""Pictures of accuracies, or of another score, by client, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.metrics import catalogue
from pflcli.metrics.metric import Metric
from pflcli.report import canvas
from pflcli.report.canvas import COLOURS

_LINES, _MARKS = ("-", ":", "-."), ("o", "^", "s")
"""How the second and third eight methods differ from the first of their colour."""

FEW = 20
"""With fewer clients each is shown by name."""

_GREY = "#777777"


ACCURACY = catalogue.METRICS["accuracy"]


def _sign(metric: Metric) -> int:
    return -1 if metric.lower_is_better else 1


def _in_percent(axis: Any, metric: Metric) -> None:
    from matplotlib.ticker import PercentFormatter

    if metric.percent:
        axis.set_major_formatter(PercentFormatter(1.0))


def _style(scores: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Return each method's colour, and which lines and marks it has."""
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(scores)}
    return colours, {name: i // len(COLOURS) % len(_LINES) for i, name in enumerate(scores)}


def _legend(figure: Any, axis: Any, width: float) -> None:
    """Put the legend below the panels, where it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    columns = max(1, min(len(labels), int(width * 11 / (max(map(len, labels)) + 7))))
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=columns, fontsize=8)


def by_client(
    names: Sequence[str],
    scores: Mapping[str, NDArray[np.float64]],
    baseline: str | None,
    title: str,
    metric: Metric = ACCURACY,
) -> bytes:
    """Return a PNG: one row per client, a dot per method, and a line from the baseline's to each.

    ``names`` (m,) are those of the clients, ``scores`` maps a method to theirs (m,) by the ``metric``, nan where not
    known. The client that the baseline serves best, or all methods on average, stands on top.
    """
    table = np.stack(list(scores.values()))
    base = scores.get(baseline) if baseline is not None else None
    reference = np.nanmean(table, axis=0) if base is None else base
    order = np.argsort(np.nan_to_num(_sign(metric) * reference, nan=-np.inf), kind="stable")
    count, methods = len(names), [name for name in scores if name != baseline]
    width = 7.4
    tall = max(0.16 * len(methods), 0.34)
    figure, panels = canvas.draw((width, 1.7 + count * tall), [1])
    axis = panels[0][0]
    colours, again = _style(scores)
    spread = np.linspace(0.3, -0.3, len(methods)) if len(methods) > 1 else np.zeros(len(methods))
    rows = np.arange(count)
    for name, offset in zip(methods, spread, strict=True):
        values = scores[name][order]
        if base is not None:
            axis.hlines(rows + offset, reference[order], values, color=colours[name], lw=1.2, alpha=0.6)
        mark = _MARKS[again[name]]
        axis.plot(values, rows + offset, mark, color=colours[name], ms=5, label=name, clip_on=False)
    if base is not None:
        axis.vlines(reference[order], rows - 0.4, rows + 0.4, color=_GREY, lw=2, label=baseline)
    axis.set_yticks(rows, [names[place] for place in order])
    axis.set(xlabel=f"test {metric.heading}", title=title, ylim=(-0.6, count - 0.4))
    _in_percent(axis.xaxis, metric)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, axis="x")
    _legend(figure, axis, width)
    return canvas.png(figure)


def ranked(
    scores: Mapping[str, NDArray[np.float64]], baseline: str | None, title: str, metric: Metric = ACCURACY
) -> bytes:
    """Return a PNG: clients ranked by a score, one line a method, and whom each method helps.

    ``scores`` maps a method to its clients' scores (m,) by the ``metric``. Left, each line is sorted by itself, so that
    its left end shows the worst-served clients. Right, the gain over ``baseline``, clients in the baseline's order.
    """
    reference = scores.get(baseline) if baseline is not None else None
    others = [name for name in scores if name != baseline]
    paired = reference is not None and bool(others)
    width = 6.2 * (1 + paired)
    figure, axes = canvas.draw((width, 4.6), [1] * (1 + paired))
    colours, again = _style(scores)
    lines = axes[0][0]
    for name, values in scores.items():
        known = np.sort(values[~np.isnan(values)])[:: _sign(metric)]
        style: dict[str, Any] = {"color": colours[name], "ls": _LINES[again[name]]}
        if name == baseline:
            style = {"color": _GREY, "ls": "--"}
        share = (np.arange(len(known)) + 0.5) / max(len(known), 1) * 100
        lines.plot(share, known, label=name, lw=1.8, **style)
    lines.set(xlabel="clients, worst-served first (%)", ylabel=f"test {metric.heading}", title=title, xlim=(0, 100))
    lines.axvline(10, color="#bbbbbb", lw=0.8, zorder=0)
    lines.text(11, lines.get_ylim()[0], "bottom decile", color=_GREY, fontsize=8, va="bottom")
    _in_percent(lines.yaxis, metric)
    if paired:
        assert reference is not None
        gain = axes[0][1]
        for name in others:
            known_pair = ~np.isnan(reference) & ~np.isnan(scores[name])
            gain.scatter(
                reference[known_pair],
                (100 if metric.percent else 1) * _sign(metric) * (scores[name] - reference)[known_pair],
                s=14 if len(reference) <= 100 else 6,
                alpha=0.6,
                color=colours[name],
                marker=_MARKS[again[name]],
            )
        gain.axhline(0, color=_GREY, ls="--", lw=1.2)
        unit = " (points)" if metric.percent else ""
        gain.set(
            xlabel=f"{metric.heading} under {baseline}", ylabel=f"gain of each client{unit}", title="Whom it helps"
        )
        _in_percent(gain.xaxis, metric)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    _legend(figure, lines, width)
    return canvas.png(figure)
