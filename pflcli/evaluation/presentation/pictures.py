"""Pictures of accuracies, or of another score, by client, drawn without a display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.metrics import catalogue
from pflcli.evaluation.metrics.metric import Metric
from pflcli.evaluation.presentation import canvas
from pflcli.evaluation.presentation.canvas import COLOURS

_LINES, _MARKS = ("-", ":", "-."), ("o", "^", "s")
"""How the second and third eight methods differ from the first of their colour."""

FEW = 20
"""With fewer clients each is shown by name."""

_GREY = "#777777"

_PANEL = 6.2
"""Width of the lines, and of all small panels together, in inches."""


ACCURACY = catalogue.METRICS["accuracy"]


def _sign(metric: Metric) -> int:
    return -1 if metric.lower_is_better else 1


def _in_percent(axis: Any, metric: Metric) -> None:
    from matplotlib.ticker import PercentFormatter

    if metric.percent:
        axis.set_major_formatter(PercentFormatter(1.0))


def _style(scores: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Return each method's colour, line style and mark."""
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
    """Return a PNG: clients ranked by score, a line per method, and the clients that each method helps.

    ``scores`` maps a method to its clients' scores (m,) by the ``metric``. Left, each line is sorted by itself, so that
    its left end shows the worst-served clients. Right, a panel per method with each client's gain over ``baseline``.
    """
    reference = scores.get(baseline) if baseline is not None else None
    others = [name for name in scores if name != baseline]
    colours, repeats = _style(scores)
    if reference is None or not others:
        figure, axes = canvas.draw((_PANEL, 4.6), [1])
        left, lines = figure, axes[0][0]
    else:
        columns = min(math.ceil(math.sqrt(len(others))), 5)
        rows = math.ceil(len(others) / columns)
        figure = canvas.figure((2 * _PANEL, max(4.6, 1.45 * rows + 0.8)))
        left, right = figure.subfigures(1, 2)
        lines = left.subplots()
        panels = right.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
        for name in others:
            _gains(next(panels), name, reference, scores[name], colours[name], metric)
        for unused in panels:
            unused.set_axis_off()
        unit = " (points)" if metric.percent else ""
        right.suptitle("A dot per client and seed: ↑ better off, ↓ worse off", fontsize=11)
        right.supxlabel(f"{metric.heading} under {baseline}", fontsize=10)
        right.supylabel(f"gain{unit}", fontsize=10)
    _ranks(lines, scores, baseline, (colours, repeats), metric)
    lines.set_title(title)
    _legend(left, lines, _PANEL)
    return canvas.png(figure)


def _ranks(
    axis: Any,
    scores: Mapping[str, NDArray[np.float64]],
    baseline: str | None,
    styles: tuple[dict[str, str], dict[str, int]],
    metric: Metric,
) -> None:
    """Draw each method's clients from the worst served to the best, a line per method."""
    colours, repeats = styles
    for name, values in scores.items():
        known = np.sort(values[~np.isnan(values)])[:: _sign(metric)]
        style: dict[str, Any] = {"color": colours[name], "ls": _LINES[repeats[name]]}
        if name == baseline:
            style = {"color": _GREY, "ls": "--"}
        share = (np.arange(len(known)) + 0.5) / max(len(known), 1) * 100
        axis.plot(share, known, label=name, lw=1.8, **style)
    axis.set(xlabel="clients, worst-served first (%)", ylabel=f"test {metric.heading}", xlim=(0, 100))
    axis.axvline(10, color="#bbbbbb", lw=0.8, zorder=0)
    axis.text(11, axis.get_ylim()[0], "bottom decile", color=_GREY, fontsize=8, va="bottom")
    _in_percent(axis.yaxis, metric)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def _gains(
    axis: Any,
    name: str,
    reference: NDArray[np.float64],
    values: NDArray[np.float64],
    colour: str,
    metric: Metric,
) -> None:
    """Draw each client's gain by one method over its score under the baseline, ``reference`` (m,)."""
    both = ~np.isnan(reference) & ~np.isnan(values)
    gains = ((100 if metric.percent else 1) * _sign(metric) * (values - reference))[both]
    # The line first: it asks for the limits of its axis, which the dots of all panels share.
    axis.axhline(0, color=_GREY, ls="--", lw=1.0)
    axis.scatter(reference[both], gains, s=12 if both.sum() <= 100 else 4, alpha=0.6, color=colour, linewidths=0)
    better, worse = (100 * float(np.mean(side)) if len(gains) else 0.0 for side in (gains > 0, gains < 0))
    # At a given height, as to look what else may be up there takes a quarter of the time of the picture.
    axis.set_title(f"{name}\n↑ {better:.0f} % ↓ {worse:.0f} %", fontsize=8.5, y=1)
    axis.tick_params(labelsize=8)
    _in_percent(axis.xaxis, metric)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
