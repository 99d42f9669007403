"""Laws on local steps: counted, they are the steps of epochs, and a method may not count them in its own way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import worlds
from helpers import unmeasured
from pflcli import registry

METHODS = registry.names("methods")
BATCHES = {"per-fedavg": 2}
"""How many times as large as asked for a method's minibatches are, where they are."""


def equal_clients():
    """Five clients with seven training samples each: an epoch is two minibatches of four and three."""
    data, sizes = worlds.federation(), np.tile([7, 1, 1], (5, 1))
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    return replace(data, x=data.x[: offsets[-1]], y=data.y[: offsets[-1]], offsets=offsets, cluster=worlds.CLUSTER[:5])


@pytest.mark.parametrize("method", METHODS)
def test_as_many_steps_as_an_epoch_has_are_an_epoch(method):
    """Where clients are of one size, so that a number of steps is a number of epochs: the same bytes."""
    steps = 4 // BATCHES.get(method, 1)
    runs = [worlds.run(method, data=equal_clients(), **how) for how in ({"epochs": 2}, {"steps": steps})]
    states = [worlds.play(method, run) for run in runs]
    assert worlds.same(*(unmeasured(state) for state in states))
    answers = [worlds.answers(method, run, state)["test"] for run, state in zip(runs, states, strict=True)]
    assert answers[0].tobytes() == answers[1].tobytes()
