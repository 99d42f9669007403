"""Pictures, drawn without a display."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.report.canvas import COLOURS

_LINES, _MARKS = ("-", ":", "-."), ("o", "^", "s")
"""How the second and third eight methods differ from the first of their colour."""


def ranked_accuracy(accuracy: Mapping[str, NDArray[np.float64]], baseline: str | None, title: str) -> bytes:
    """Return a PNG: clients ranked by accuracy, one line a method, and whom each method helps.

    ``accuracy`` maps a method to its clients' accuracies (m,). Left, each line is sorted by itself, so that its left
    end shows the worst-served clients. Right, the gain over ``baseline``, clients in the baseline's order.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import PercentFormatter

    reference = accuracy.get(baseline) if baseline is not None else None
    others = [name for name in accuracy if name != baseline]
    paired = reference is not None and bool(others)
    figure, axes = pyplot.subplots(1, 1 + paired, figsize=(6.2 * (1 + paired), 4.2), squeeze=False)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(accuracy)}
    again = {name: i // len(COLOURS) % len(_LINES) for i, name in enumerate(accuracy)}
    ranked = axes[0][0]
    for name, values in accuracy.items():
        known = np.sort(values[~np.isnan(values)])
        style: dict[str, Any] = {"color": colours[name], "ls": _LINES[again[name]]}
        if name == baseline:
            style = {"color": "#777777", "ls": "--"}
        share = (np.arange(len(known)) + 0.5) / max(len(known), 1) * 100
        ranked.plot(share, known, label=name, lw=1.8, **style)
    ranked.set(xlabel="clients, worst-served first (%)", ylabel="test accuracy", title=title, xlim=(0, 100))
    ranked.axvline(10, color="#bbbbbb", lw=0.8, zorder=0)
    ranked.text(11, ranked.get_ylim()[0], "bottom decile", color="#777777", fontsize=8, va="bottom")
    many = len(accuracy) > len(COLOURS)
    ranked.legend(frameon=False, loc="lower right", ncols=1 + many, fontsize=8 if many else None)
    ranked.yaxis.set_major_formatter(PercentFormatter(1.0))
    if paired:
        assert reference is not None
        gain = axes[0][1]
        for name in others:
            known_pair = ~np.isnan(reference) & ~np.isnan(accuracy[name])
            gain.scatter(
                reference[known_pair],
                (accuracy[name] - reference)[known_pair],
                s=14,
                alpha=0.6,
                color=colours[name],
                marker=_MARKS[again[name]],
                label=name,
            )
        gain.axhline(0, color="#777777", ls="--", lw=1.2)
        gain.set(xlabel=f"accuracy under {baseline}", ylabel="gain of each client", title="Whom it helps")
        gain.xaxis.set_major_formatter(PercentFormatter(1.0))
        gain.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.tight_layout()
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=130, metadata={"Software": None})
    pyplot.close(figure)
    return memory.getvalue()
