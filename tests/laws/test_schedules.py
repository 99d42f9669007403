"""Clients personalize at the learning rate of the last round, whatever the schedule."""

from __future__ import annotations

import copy

import pytest

import worlds
from pflcli import methods, registry
from pflcli.laws import small_federation as small

METHODS = [name for name in registry.names("methods") if methods.load(name).KIND != "local"]
"""All but methods whose whole training is personalization: it goes through the schedule."""

SCHEDULES = {
    "milestones": {"milestones": "1", "gamma": 0.2},
    "cosine": {"lr_schedule": "cosine", "gamma": 0.3},
    "warm-up": {"lr_warmup": 8},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", METHODS)
def test_clients_personalize_at_the_last_learning_rate(method, schedule):
    """With the same state, predictions are those of a run whose rate is constant: the last one of the schedule."""
    data = small.add_new_clients(small.make_federation(), ((11, 3, 4), (5, 2, 3)))
    scheduled = worlds.run(method, data=data, **SCHEDULES[schedule])
    constant = worlds.run(method, data=data, lr=scheduled.last_lr)
    state = worlds.play(method, scheduled)
    first, second = (worlds.answers(method, run, copy.deepcopy(state)) for run in (scheduled, constant))
    assert scheduled.last_lr != scheduled.settings.lr
    assert worlds.same({k: v.tobytes() for k, v in first.items()}, {k: v.tobytes() for k, v in second.items()})
