"""Trains chains of linear layers by plain SGD in compiled loops, which take all steps of one client after the other.

The weights of a small multilayer perceptron stay in the cache of a core; those of a stack would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.accelerated.chains import layer_arrays, layer_table, take_steps, trained_mask
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.linear_chain import Layer
from pflcli.core.engine.local_sgd import LEAST_WEIGHT, LocalSGD, is_stacked
from pflcli.core.parameters import Params, Stacked

_SAMPLE_BYTES = 2 << 20
"""Bytes of samples in one call of a loop."""


@dataclass(frozen=True)
class _Schedule:
    """All steps of the clients, one client after the other.

    ``place`` (t,) is the place of the step's client, ``rows`` (t, n) are rows of the federation, ``weight`` (t, n) are
    the weights of samples and zero for padding at the end, ``rate`` (t,) is the learning rate. ``counts`` (m,) is the
    number of steps of each client.
    """

    place: NDArray[np.int64]
    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    rate: NDArray[np.float32]
    counts: NDArray[np.int64]


def train(
    chain: Sequence[Layer],
    data: Federation,
    clients: NDArray[np.int64],
    draws: Sequence[np.random.Generator],
    places: NDArray[np.int64],
    start: Params | Stacked,
    out: Stacked,
    plan: LocalSGD,
) -> NDArray[np.float64]:
    """Train ``clients`` (m,) into ``places`` (m,) of ``out``, and return their mean losses (m,).

    ``draws`` are the clients' generators of minibatches. ``start`` is one model, or contains the clients' models at
    ``places``, as ``plan`` contains their constants.
    """

    like = {name: value[0] for name, value in out.items()}
    own_start = is_stacked(start, like)
    for name, value in out.items():
        for place in places.tolist():
            value[place].copy_(start[name][place] if own_start else start[name])
    layers, own = layer_table(chain, like), layer_arrays(chain, out)
    assert all(value.is_contiguous() for value in out.values())  # so that the arrays share their memory
    trained = trained_mask(chain, [name for name in like if name.startswith(plan.trainable)])
    anchor, pull = plan.prox or ({}, 0.0)
    pulls = layer_arrays(chain, anchor, is_stacked(anchor, like)) if pull else layer_arrays(chain, {})
    drift = layer_arrays(chain, plan.own if plan.adds_own else {})
    steps = _schedule(data, clients, draws, places, plan)
    losses = np.empty(len(steps.place))
    at_once = max(1, _SAMPLE_BYTES // (4 * steps.rows.shape[1] * int(layers[0, 0])))
    for first in range(0, len(losses), at_once):
        part = slice(first, first + at_once)
        rows = torch.from_numpy(steps.rows[part])
        x = data.inputs(rows.flatten()).numpy().reshape(*rows.shape, -1)
        rate = steps.rate[part]
        batches = steps.place[part], x, data.y[rows].numpy(), steps.weight[part], rate
        take_steps(layers, own, own, trained, pulls, drift, rate * np.float32(pull), batches, losses[part])
    sums = np.bincount(np.repeat(np.arange(len(clients)), steps.counts), losses, len(clients))
    return np.asarray(sums / np.maximum(steps.counts, 1))


def _schedule(
    data: Federation,
    clients: NDArray[np.int64],
    draws: Sequence[np.random.Generator],
    places: NDArray[np.int64],
    plan: LocalSGD,
) -> _Schedule:
    """Return the steps of the clients in their order."""
    batches: list[NDArray[np.int64]] = []
    weights: list[NDArray[np.float32]] = []
    rates: list[float] = []
    counts = []
    for client, place, draw in zip(clients, places.tolist(), draws, strict=True):
        own, before = data.rows(int(client), *plan.splits), len(batches)
        for batch, rate in plan.schedule(place, len(own), draw, join_single=False):
            batches.append(own[batch])
            rates.append(rate)
            if plan.sample_weights is not None:
                weights.append(np.maximum(plan.sample_weights[place].numpy()[batch], LEAST_WEIGHT))
        counts.append(len(batches) - before)
    sizes = np.asarray([len(batch) for batch in batches], np.int64)
    is_sample = np.arange(sizes.max(initial=1)) < sizes[:, None]
    # Pad with a sample of the client, which is in memory anyway.
    rows = np.repeat(np.asarray([batch[0] for batch in batches], np.int64)[:, None], is_sample.shape[1], axis=1)
    weight = (is_sample / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    if batches:
        rows[is_sample] = np.concatenate(batches)
    if weights:
        weight[is_sample] *= np.concatenate(weights)
    return _Schedule(np.repeat(places, counts), rows, weight, np.asarray(rates, np.float32), np.asarray(counts))
