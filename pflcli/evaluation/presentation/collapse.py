"""A picture of biases that the same matrix maps round after round, and of the accuracy in these rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.presentation import canvas
from pflcli.evaluation.presentation.canvas import COLOURS

Array = NDArray[np.floating[Any]]


def collapse(history: Mapping[str, Array], rounds: NDArray[np.int64], title: str) -> bytes:
    """Return a PNG of three curves, one below the other: the spectral radius of W_V, the largest bias, the accuracy.

    ``history`` has (r,) values of ``rho``, ``largest``, ``validation`` (-1 where unknown) and ``rejected`` uploads, one
    for each of ``rounds`` (r,). A radius above 1 amplifies. Rounds with rejected uploads are marked.
    """
    figure, axes = canvas.draw((6.8, 7.2), [1.0], rows=3)
    figure.suptitle(title, fontsize=11)
    radius, largest, accuracy = axes[:, 0]
    mark: dict[str, Any] = {"lw": 1.8, "marker": "o" if len(rounds) <= 30 else "", "ms": 3.5}
    radius.plot(rounds, history["rho"], color=COLOURS[0], **mark)
    radius.axhline(1, color="#777777", ls="--", lw=1.2, label="1: above it, biases grow")
    radius.set(ylabel="spectral radius of $W_V$")
    radius.legend(frameon=False, fontsize=8.5)
    bias = np.where(np.isfinite(history["largest"]), history["largest"], np.nan)
    largest.plot(rounds, bias, color=COLOURS[1], **mark)
    largest.set(ylabel="largest bias sent")
    if np.nanmax(bias, initial=0) > 100 * max(np.nanmin(bias, initial=np.inf), 1e-12):
        largest.set_yscale("log")
    right = np.where(history["validation"] < 0, np.nan, history["validation"])
    accuracy.plot(rounds, right, color=COLOURS[2], **mark)
    accuracy.set(ylabel="validation accuracy", xlabel="round", ylim=(-0.02, 1.02))
    lost = rounds[history["rejected"] > 0]
    if len(lost):
        accuracy.plot(lost, np.zeros(len(lost)), "x", color="black", ms=5, label="uploads rejected", clip_on=False)
        accuracy.legend(frameon=False, fontsize=8.5)
    for axis in axes[:, 0]:
        axis.set_xlim(rounds[0] - 0.5, rounds[-1] + 0.5)
        canvas.plain(axis)
    return canvas.png(figure)
