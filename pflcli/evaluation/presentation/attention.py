"""A picture of the attention that a method's clients pay to each other, and how it changes over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.metrics.attention import of_last_round
from pflcli.evaluation.presentation import canvas
from pflcli.evaluation.presentation.canvas import COLOURS, Order

Array = NDArray[np.floating[Any]]

SLOTS = ("own", "attended", "global")
"""What the second layer chooses among."""

_FIELDS, _NOTHING = "Blues", "#dddddd"
"""Colours of fields: white is 0; and where there is nothing to attend to, as on the diagonal."""


def attention(
    first: Array,
    second: Array,
    rounds: NDArray[np.int64],
    title: str,
    cluster: NDArray[np.int64] | None = None,
    names: Sequence[str] = (),
    *,
    apart: bool = False,
) -> bytes:
    """Return a PNG: each client's attention to others (layer 1) and to the three models (layer 2), and means by round.

    ``first`` (r, m, m) and ``second`` (r, m, 3) hold a row for each client and round, 0 where it took no part;
    ``rounds`` (r,) are their numbers; of one alone there are no means. The fields show each client's last attention,
    clients of a true ``cluster`` (m,) together; few of them are called by their ``names`` (m,).
    With ``apart`` every round has fields of its own, below one another, and there are no means.
    """
    order = Order.of(first.shape[1], cluster, names)
    took = second.sum(axis=2) > 0
    if apart:
        figure, axes = canvas.draw((7.2, 0.4 + 4.0 * len(rounds)), [4.4, 1.7], len(rounds))
        figure.suptitle(title, fontsize=11)
        for place, (others, slots) in enumerate(axes):
            one = slice(place, place + 1)
            _others(figure, others, of_last_round(first[one], took[one])[order.place][:, order.place], order)
            _slots(figure, slots, of_last_round(second[one], took[one])[order.place], order)
            others.set_title(f"round {rounds[place]}, layer 1: whom a client attends to", fontsize=10)
        return canvas.png(figure)
    several = len(rounds) > 1
    figure, axes = canvas.draw((7.2 + 7 * several, 4.4), [4.4, 1.7, 4.2][: 2 + several])
    others, slots, *means = axes[0]
    figure.suptitle(title + "; grey clients took no part" * (not took.any(axis=0).all()), fontsize=11)
    _others(figure, others, of_last_round(first, took)[order.place][:, order.place], order)
    _slots(figure, slots, of_last_round(second, took)[order.place], order)
    if several:
        _means(means[0], first, second, took, rounds, cluster)
    return canvas.png(figure)


def _others(figure: Any, axis: Any, field: Array, order: Order) -> None:
    """Draw layer 1: a row per client, its attention to each other client."""
    image = axis.imshow(np.ma.masked_where(~(field > 0), field), cmap=_FIELDS, vmin=0, interpolation="nearest")
    axis.set_facecolor(_NOTHING)
    figure.colorbar(image, ax=axis, fraction=0.046, pad=0.02)
    axis.set(title="layer 1: whom a client attends to")
    canvas.name_clients(axis, order, "other client", along="x")
    canvas.name_clients(axis, order, "client", along="y")


def _slots(figure: Any, axis: Any, field: Array, order: Order) -> None:
    """Draw layer 2: each client's attention to its own model, the attended mixture and the global model."""
    masked = np.ma.masked_invalid(field)
    image = axis.imshow(masked, cmap=_FIELDS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axis.set_facecolor(_NOTHING)
    figure.colorbar(image, ax=axis, fraction=0.1, pad=0.04)
    axis.set(title="layer 2: what it takes")
    axis.set_xticks(range(len(SLOTS)), SLOTS, rotation=30)
    for place in range(1, len(SLOTS)):
        axis.axvline(place - 0.5, color="black", lw=0.9)
    canvas.name_clients(axis, order, "client", along="y")
    axis.set_ylabel("")


def _means(
    axis: Any,
    first: Array,
    second: Array,
    took: NDArray[np.bool_],
    rounds: NDArray[np.int64],
    cluster: NDArray[np.int64] | None,
) -> None:
    """Draw means over the clients of each round."""
    count = took.sum(axis=1)
    weight = np.where(count > 0, count, np.nan)
    mean = second.sum(axis=1) / weight[:, None]
    mark = "o" if len(rounds) <= 30 else ""
    for place, name in enumerate(SLOTS):
        axis.plot(rounds, mean[:, place], color=COLOURS[place], lw=1.8, marker=mark, ms=3.5, label=f"layer 2: {name}")
    if cluster is not None:
        same: NDArray[np.bool_] = cluster[:, None] == cluster
        np.fill_diagonal(same, False)
        within = (first * same).sum(axis=2)
        share = within.sum(axis=1) / weight
        axis.plot(rounds, share, color="black", lw=1.6, ls="--", label="layer 1: to its own group")
        even = float(same.sum(axis=1).mean() / max(len(cluster) - 1, 1))
        axis.axhline(even, color="#777777", lw=1.2, ls=":", label="layer 1, if it were even")
    axis.set(title="mean over clients", xlabel="round", ylabel="attention", ylim=(-0.02, 1.02))
    axis.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    canvas.plain(axis)
