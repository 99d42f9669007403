"""Trains chains of linear layers by plain SGD in compiled loops, which take all steps of one client after the other.

The weights of a small multilayer perceptron stay in the cache of a core; those of a stack would not.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.engine.local_sgd import is_stacked
from pflcli.core.engine.trainer import Schedule, Task, Worker
from pflcli.core.parameters import Params, Stacked
from pflcli.plugins.accelerated.chains import (
    find_loss,
    layer_arrays,
    layer_table,
    scale_labels,
    take_steps,
    trained_mask,
)

_SAMPLE_BYTES = 2 << 20
"""Bytes of samples in one call of a loop."""


def train(worker: Worker, task: Task, start: Params | Stacked, out: Stacked) -> NDArray[np.float64]:
    """Train the task's clients into their places in ``out``, and return their mean losses (m,): ``Worker.train``."""
    chain, data, places, plan = worker.net.layers, worker.data, task.places, task.plan
    assert chain is not None  # the strategy is one for chains
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
    steps, loss = Schedule.draw(data, task), find_loss(data.task)
    client = np.repeat(np.arange(len(places)), steps.counts)
    losses = np.empty(len(client))
    at_once = max(1, _SAMPLE_BYTES // (4 * steps.rows.shape[1] * int(layers[0, 0])))
    for first in range(0, len(losses), at_once):
        part = slice(first, first + at_once)
        rows = torch.from_numpy(steps.rows[part])
        x = data.inputs(rows.flatten()).numpy().reshape(*rows.shape, -1)
        rate = steps.lr[part]
        batches = places[client[part]], x, scale_labels(data.task, data.y[rows].numpy()), steps.weight[part], rate
        pulled = rate * np.float32(pull)
        take_steps(layers, own, own, trained, pulls, drift, pulled, batches, loss, losses[part])
    sums = np.bincount(client, losses, len(places))
    return np.asarray(sums / np.maximum(steps.counts, 1))
