"""A round trains at its own learning rate, and clients personalize at that of the last round, for every schedule."""

from __future__ import annotations

import copy

import pytest

import worlds
from pflcli.core import methods, registry
from pflcli.core.simulation import loop
from pflcli.plugins.checks.laws import federations
from pflcli.workflow.admission import small_federation as small

METHODS = [name for name in registry.names("methods") if methods.load(name).KIND != "local"]
"""All but methods whose whole training is personalization: it goes through the schedule."""

OPTIONS = {"apfl": {"adaptive": True}}
"""Options by which a method also learns something else than models at the rate of a round."""

SCHEDULES = {
    "milestones": {"milestones": "1", "gamma": 0.2},
    "cosine": {"lr_schedule": "cosine", "gamma": 0.3},
    "warm-up": {"lr_warmup": 8},
}


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        *((method, "cosine") for method in METHODS),
        *((method, schedule) for method in ("fedavg", "ditto", "pens") for schedule in ("milestones", "warm-up")),
    ],
)
def test_clients_personalize_at_the_learning_rate_of_the_last_round(method, schedule):
    """With the same state, predictions are those of a run whose rate is constant: the last one of the schedule."""
    data = federations.add_new_clients(small.make_federation(), ((11, 3, 4), (5, 2, 3)))
    scheduled = worlds.run(method, data=data, **SCHEDULES[schedule])
    constant = worlds.run(method, data=data, lr=scheduled.last_lr)
    state = worlds.play(method, scheduled)
    first, second = (worlds.answers(method, run, copy.deepcopy(state)) for run in (scheduled, constant))
    assert scheduled.last_lr != scheduled.settings.lr
    assert worlds.same({k: v.tobytes() for k, v in first.items()}, {k: v.tobytes() for k, v in second.items()})


@pytest.mark.parametrize("method", [name for name in METHODS if methods.load(name).has_rounds])
def test_round_trains_at_its_scheduled_learning_rate(method):
    """From the same state, a round has the result of one of a run whose rate is constant: that of the round."""
    code, scheduled = methods.load(method), worlds.run(method, options=OPTIONS.get(method), **SCHEDULES["cosine"])
    rate = scheduled.settings.lr_at(1)
    constant = worlds.run(method, options=OPTIONS.get(method), lr=rate)
    state = loop.set_up(scheduled, method, code).state
    state, _ = loop.play_round(scheduled, method, code, state, 0)
    first, second = (loop.play_round(run, method, code, copy.deepcopy(state), 1)[0] for run in (scheduled, constant))
    assert rate != scheduled.settings.lr
    assert worlds.same(first, second)
