"""Oracle: rounds by hand, neutral settings, and the faults of public code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import worlds
from pflcli.errors import InputError
from pflcli.fl import params as P

ABLE = worlds.ABLE


def mean_of(made, models, members):
    return worlds.mean([models[c] for c in members], made.federation.sizes("train")[members].tolist())


def test_oracle_is_fedavg_within_the_true_clusters():
    made = worlds.run("oracle", participation=1.0)
    state = worlds.play("oracle", made, last=2)
    for c in (0, 1):
        members = [i for i in ABLE if worlds.CLUSTER[i] == c]
        model = made.init
        for t in range(2):
            model = mean_of(made, {i: worlds.steps(model, made.federation, i, ("sgd", t)) for i in members}, members)
        worlds.close(P.pick(state["models"], c), model)
        answered = worlds.answers("oracle", made, state, np.asarray([members[0]]))["test"]
        np.testing.assert_allclose(answered, worlds.probabilities(model, made.federation, members[0]), atol=1e-5)
    assert made.traffic["up"] == made.traffic["down"] == 2 * 6 * P.size(made.init)


def test_oracle_of_one_cluster_is_fedavg():
    one = replace(worlds.federation(), cluster=np.full(7, 5))
    runs = [worlds.run(name, data=one) for name in ("fedavg", "oracle")]
    expected, found = (worlds.play(name, made) for name, made in zip(("fedavg", "oracle"), runs, strict=True))
    assert worlds.same(expected["global"], P.pick(found["models"], 0))
    assert runs[0].traffic == runs[1].traffic


def test_a_cluster_of_which_nobody_takes_part_keeps_its_model():
    made = worlds.run("oracle", participation=0.17)  # one client a round
    state = worlds.play("oracle", made, last=1)
    (client,) = made.cohort(0)
    other = 1 - worlds.CLUSTER[client]
    assert worlds.same(P.pick(state["models"], other), made.init)
    assert not worlds.same(P.pick(state["models"], 1 - other), made.init)


def test_oracle_without_clusters_says_what_to_do():
    made = worlds.run("oracle", data=replace(worlds.federation(), cluster=None))
    with pytest.raises(InputError, match="does not know the true clusters") as caught:
        worlds.play("oracle", made)
    assert "--scheme clusters" in caught.value.fix[0]
