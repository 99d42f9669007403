"""Trains chains of linear layers by plain SGD in a compiled loop: one client after the other, in its place.

The weights of one small multilayer perceptron stay in the cache of a core, where those of a stack would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.accelerated import rules
from pflcli.accelerated.chain import Chain, Minibatches
from pflcli.engine.federation import Federation
from pflcli.engine.linear_chain import Layer
from pflcli.engine.local_sgd import LEAST_WEIGHT, LocalSGD, is_stacked
from pflcli.parameters import Params, Stacked

_BYTES = 2 << 20
"""Bytes of samples that are read at a time."""


@dataclass(frozen=True)
class _Steps:
    """The steps of clients, those of a client together: of which client each is, and its minibatch.

    ``place`` (t,) is the client's place, ``rows`` (t, n) are rows of the federation, ``weight`` (t, n) is that of
    samples and zero for padding at the end, ``rate`` (t,) the learning rate; ``counts`` (m,) says how many each has.
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

    ``draws`` holds each client's generator of minibatches. ``start`` is one model, or has the clients' models at their
    places, where ``plan`` has what is their own.
    """
    from pflcli.accelerated.compiled_passes import are_trained, arrays, table

    like = {name: value[0] for name, value in out.items()}
    own_start = is_stacked(start, like)
    for name, value in out.items():
        for place in places.tolist():
            value[place].copy_(start[name][place] if own_start else start[name])
    layers, parameters = table(chain, like), arrays(chain, out)
    assert all(value.is_contiguous() for value in out.values())  # so that the arrays share their memory
    trained = are_trained(chain, [name for name in like if name.startswith(plan.trainable)])
    models = Chain(layers, parameters, trained, out, plan.own, plan.shared)
    rule = plan.gradient
    take_steps = partial(rules.STEPS[rules.name(rule)], rule) if rule else _descent(chain, plan, like)
    steps = _steps(data, clients, draws, places, plan)
    losses = np.empty(len(steps.place))
    at_once = max(1, _BYTES // (4 * steps.rows.shape[1] * int(layers[0, 0])))
    for first in range(0, len(losses), at_once):
        part = slice(first, first + at_once)
        rows = torch.from_numpy(steps.rows[part])
        x = data.inputs(rows.flatten()).numpy().reshape(*rows.shape, -1)
        batches = Minibatches(steps.place[part], x, data.y[rows].numpy(), steps.weight[part], steps.rate[part])
        losses[part] = take_steps(models, batches)
    sums = np.bincount(np.repeat(np.arange(len(clients)), steps.counts), losses, len(clients))
    return np.asarray(sums / np.maximum(steps.counts, 1))


def _descent(
    chain: Sequence[Layer], plan: LocalSGD, like: Params
) -> Callable[[Chain, Minibatches], NDArray[np.float64]]:
    """Return the function that takes steps along the gradients of the cross-entropy."""
    from pflcli.accelerated import chain_loops
    from pflcli.accelerated.compiled_passes import arrays

    anchor, pull = plan.prox or ({}, 0.0)
    pulls = arrays(chain, anchor, is_stacked(anchor, like)) if pull else arrays(chain, {})
    drift = arrays(chain, plan.own if plan.adds_own else {})

    def steps(models: Chain, batches: Minibatches) -> NDArray[np.float64]:
        losses, own, rate = np.empty(len(batches.place)), models.parameters, batches.rate
        minibatches = batches.place, batches.x, batches.y, batches.weight, rate, rate * np.float32(pull)
        chain_loops.steps(models.layers, own, own, models.trained, pulls, drift, *minibatches, losses)
        return losses

    return steps


def _steps(
    data: Federation,
    clients: NDArray[np.int64],
    draws: Sequence[np.random.Generator],
    places: NDArray[np.int64],
    plan: LocalSGD,
) -> _Steps:
    """Return the steps of clients, in the order of these."""
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
    # Pad with the client's own samples, which are in memory.
    rows = np.repeat(np.asarray([batch[0] for batch in batches], np.int64)[:, None], is_sample.shape[1], axis=1)
    weight = (is_sample / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    if batches:
        rows[is_sample] = np.concatenate(batches)
    if weights:
        weight[is_sample] *= np.concatenate(weights)
    return _Steps(np.repeat(places, counts), rows, weight, np.asarray(rates, np.float32), np.asarray(counts))
