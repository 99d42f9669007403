"""Oracle: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import worlds
from by_hand import mean_members
from pflcli.core import parameters
from pflcli.core.errors import InputError


def test_oracle_runs_fedavg_within_each_true_cluster():
    run = worlds.run("oracle", participation=1.0)
    state = worlds.play("oracle", run, last=2)
    for c in (0, 1):
        members = [i for i in worlds.ABLE if worlds.CLUSTER[i] == c]
        model = run.init
        for t in range(2):
            model = mean_members(run, {i: worlds.steps(model, run.federation, i, ("sgd", t)) for i in members}, members)
        worlds.close(parameters.pick(state["models"], c), model)
        actual = worlds.answers("oracle", run, state, np.asarray([members[0]]))["test"]
        np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, members[0]), atol=1e-5)
    assert run.traffic["up"] == run.traffic["down"] == 2 * 6 * parameters.size(run.init)


def test_oracle_with_one_cluster_equals_fedavg():
    one = replace(worlds.federation(), cluster=np.full(7, 5))
    runs = [worlds.run(name, data=one) for name in ("fedavg", "oracle")]
    expected, actual = (worlds.play(name, run) for name, run in zip(("fedavg", "oracle"), runs, strict=True))
    assert worlds.same(expected["global"], parameters.pick(actual["models"], 0))
    assert runs[0].traffic == runs[1].traffic


def test_oracle_keeps_the_model_of_a_cluster_without_participants():
    run = worlds.run("oracle", participation=0.17)  # one client a round
    state = worlds.play("oracle", run, last=1)
    (client,) = run.cohort(0)
    other = 1 - worlds.CLUSTER[client]
    assert worlds.same(parameters.pick(state["models"], other), run.init)
    assert not worlds.same(parameters.pick(state["models"], 1 - other), run.init)


def test_oracle_without_known_clusters_is_refused_with_a_suggestion():
    run = worlds.run("oracle", data=replace(worlds.federation(), cluster=None))
    with pytest.raises(InputError, match="does not know the true clusters") as caught:
        worlds.play("oracle", run)
    assert "--scheme clusters" in caught.value.fix[0]
