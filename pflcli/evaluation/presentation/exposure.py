"""Pictures of what an attacker learns: ROC curves of attacks, and how exposed each client is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.presentation import canvas
from pflcli.evaluation.presentation.canvas import COLOURS

_GREY = "#777777"


def picture(
    curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    names: Sequence[str],
    areas: NDArray[np.float64],
    attack: str,
) -> bytes:
    """Return a PNG: left the ROC curve of each attack, right the clients by one attack, most exposed first.

    ``curves`` has the shares of non-members and members (k,) by attack; ``areas`` (m, 3) are AUC and interval of the
    clients ``names`` (m,). Axes of the curves are logarithmic, as few false positives are what harms (Carlini et al.
    2022).
    """
    figure, panels = canvas.draw((11.5, 4.6), [1, 1.25])
    left, right = panels[0]
    least = min([0.5 / (len(false) or 1) for false, _ in curves.values()], default=1e-3)
    least = max(min(least, 1e-2), 1e-5)
    grid = np.geomspace(least, 1, 50)
    left.plot(grid, grid, color=_GREY, ls="--", lw=1, label="guessing")
    for number, (name, (false, true)) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        left.plot(np.maximum(false, least), np.maximum(true, least), color=colour, lw=1.6, label=name)
    left.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
    left.set(xlabel="non-members taken for members", ylabel="members recognized", title="All clients together")
    left.legend(frameon=False, fontsize=8, loc="lower right")
    left.grid(alpha=0.25)
    places = np.arange(len(areas))
    right.axhline(0.5, color=_GREY, ls="--", lw=1)
    if len(areas):
        spread = np.abs(areas[:, 1:].T - areas[:, 0])
        style = {"ms": 4, "lw": 1, "color": COLOURS[0], "alpha": 0.85}
        right.errorbar(places, areas[:, 0], spread, fmt="o", **style)
    right.set(ylabel="AUC, with 95 % interval", ylim=(-0.02, 1.02), title=f"Clients under the attack '{attack}'")
    if len(names) <= canvas.MOST_NAMED:
        right.set_xticks(places, [_label(name) for name in names], rotation=90, fontsize=7)
    else:
        right.set_xlabel("clients, most exposed first")
    right.spines[["top", "right"]].set_visible(False)
    right.grid(alpha=0.25, axis="y")
    return canvas.png(figure)


def classes(pictures: NDArray[np.float64], owners: Sequence[str], names: Sequence[str]) -> bytes:
    """Return a PNG of inverted classes: a row per client of ``owners`` (r,), a column per class of ``names`` (C,).

    ``pictures`` (r, C, h, w) or (r, C, h, w, 3) are in [0, 1]; nan leaves a place empty.
    """
    rows, columns = pictures.shape[:2]
    figure, axes = canvas.draw((0.9 * columns + 1.2, 1.05 * rows + 0.6), [1] * columns, rows)
    for row in range(rows):
        for column in range(columns):
            axis, image = axes[row][column], pictures[row, column]
            axis.set(xticks=[], yticks=[])
            if np.isfinite(image).all():
                axis.imshow(image, cmap="gray", vmin=0, vmax=1)
            else:
                axis.spines[:].set_visible(False)
            if row == 0:
                axis.set_title(_label(names[column]), fontsize=8)
            if column == 0:
                axis.set_ylabel(_label(owners[row]), fontsize=8)
    return canvas.png(figure)


def _label(name: str) -> str:
    """Return a name as plain text: no mathematics between dollars, and no character that no font has."""
    visible = "".join(letter if letter.isprintable() else "?" for letter in name)
    return canvas.short(visible).replace("$", r"\$")
