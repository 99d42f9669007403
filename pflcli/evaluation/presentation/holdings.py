"""A picture of a partition: how much each client holds, and of which classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.presentation import canvas

_TRAINING, _NEW = "#0072B2", "#D55E00"
_FEW = 120
"""Up to so many clients a bubble each can be told apart; more are drawn as a heat map."""


def holdings(
    counts: NDArray[np.int64],
    title: str,
    cluster: NDArray[np.int64] | None = None,
    new: NDArray[np.bool_] | None = None,
    names: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> bytes:
    """Return a PNG: above, each client's number of samples; below, its samples of each class.

    ``counts`` (m, C): samples by client and class. Few clients stand in their order, many by their most frequent class,
    those of a ``cluster`` (m,) together. Clients that are ``new`` (m,) have another colour. Few clients and classes are
    called by their ``names`` (m,) and ``classes`` (C,).
    """
    clients, labels = counts.shape
    few = clients <= _FEW
    order = _order(counts, cluster, by_class=not few)
    counts = counts[order]
    late = np.zeros(clients, dtype=np.bool_) if new is None else new[order]
    width = float(np.clip(2.0 + 0.11 * clients, 6.0, 15.0))
    height = float(np.clip(0.24 * labels, 2.4, 9.0))
    figure = canvas.figure((width, height + 2.3))
    size, composition = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, height])
    _sizes(size, counts.sum(axis=1), late, few)
    figure.suptitle(title, fontsize=11)
    if few:
        place = 72 * min((width - 1.2) / clients, 1.5 * height / labels)
        _bubbles(composition, counts, np.where(late, _NEW, _TRAINING), widest=place)
    else:
        _heat(figure, composition, counts)
    composition.set(ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(labels - 0.5, -0.5))
    if classes and labels <= canvas.MOST_NAMED:
        composition.set_yticks(range(labels), [canvas.short(name) for name in classes])
    else:
        composition.yaxis.get_major_locator().set_params(integer=True)
    _name(composition, cluster, clients, few)
    if names and cluster is None and clients <= canvas.MOST_NAMED:
        turn = 90 if any(len(name) > 4 for name in names) else 0
        composition.set_xticks(range(clients), [canvas.short(names[client]) for client in order], rotation=turn)
    for axis in (size, composition):
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return canvas.png(figure)


def _sizes(axis: Any, totals: NDArray[np.int64], late: NDArray[np.bool_], few: bool) -> None:
    """Draw each client's number of samples, ``totals`` (m,)."""
    for chosen, colour, label in ((~late, _TRAINING, "train the global model"), (late, _NEW, "new: join later")):
        if few:
            axis.bar(np.flatnonzero(chosen), totals[chosen], width=0.8, color=colour, label=label)
        else:  # a bar each takes minutes for thousands
            edges = np.arange(len(totals) + 1) - 0.5
            axis.stairs(np.where(chosen, totals, 0), edges, fill=True, color=colour, label=label)
    if late.any():
        axis.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, fontsize=9)
    axis.set(ylabel="samples")
    axis.grid(axis="y", alpha=0.25)


def _order(counts: NDArray[np.int64], cluster: NDArray[np.int64] | None, *, by_class: bool) -> NDArray[np.intp]:
    """Return the ids of clients (m,) from left to right."""
    keys = [np.arange(len(counts))]
    if by_class:
        share = counts.max(axis=1) / np.maximum(counts.sum(axis=1), 1)
        keys += [-share, counts.argmax(axis=1)]
    if cluster is not None:
        keys.append(cluster)
    return np.lexsort(keys)


def _bubbles(axis: Any, counts: NDArray[np.int64], colours: NDArray[np.str_], widest: float) -> None:
    """Draw a bubble for each client and class, its area the number of samples; ``widest`` in points."""
    most = max(int(counts.max()), 1)
    client, label = np.nonzero(counts)
    diameter = 0.95 * min(widest, 16.0)
    area = diameter**2 * counts[client, label] / most
    axis.scatter(client, label, s=area, c=colours[client].tolist(), alpha=0.75, linewidths=0)
    axis.grid(alpha=0.2)
    note = f"largest bubble: {most} samples"
    axis.text(1, 1.01, note, transform=axis.transAxes, ha="right", va="bottom", fontsize=9)


def _heat(figure: Any, axis: Any, counts: NDArray[np.int64]) -> None:
    """Draw a cell for each client and class, white where there is no sample."""
    from matplotlib.colors import PowerNorm

    masked = np.ma.masked_equal(counts.T, 0)
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(counts.max()), 1))
    image = axis.imshow(masked, aspect="auto", interpolation="nearest", cmap="viridis_r", norm=norm)
    figure.colorbar(image, ax=axis, label="samples", pad=0.01, aspect=30)


def _name(axis: Any, cluster: NDArray[np.int64] | None, clients: int, few: bool) -> None:
    """Label clients by their numbers or their groups."""
    sorting = "" if few else ", by most frequent class"
    if cluster is None:
        axis.set(xlabel="client" if few else f"{clients} clients{sorting}")
        axis.xaxis.get_major_locator().set_params(integer=True)
        return
    sizes = np.bincount(cluster)
    ends = np.cumsum(sizes)
    for end in ends[:-1]:
        axis.axvline(end - 0.5, color="black", lw=1.0, zorder=3)
    axis.set_xticks(ends - sizes / 2 - 0.5, [str(group) for group in range(len(sizes))])
    axis.set(xlabel=f"{clients} clients, by group{sorting.replace(', by', ' and')}")
