"""Oracle and IFCA: rounds by hand, neutral settings, and the faults of public code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from pflcli.errors import InputError
from pflcli.fl import clusters
from pflcli.fl import params as P

ABLE = worlds.ABLE


def loss(model, data, client):
    rows = data.block(client, "train")
    return float(functional.cross_entropy(worlds.logits(model, data.inputs(rows)), data.y[rows]))


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


def test_ifca_with_one_model_is_fedavg():
    runs = [worlds.run("fedavg"), worlds.run("ifca", options={"k": 1})]
    expected, found = (worlds.play(name, made) for name, made in zip(("fedavg", "ifca"), runs, strict=True))
    assert worlds.same(expected["global"], P.pick(found["models"], 0))
    assert runs[0].traffic == runs[1].traffic
    first, second = worlds.answers("fedavg", runs[0], expected), worlds.answers("ifca", runs[1], found)
    np.testing.assert_allclose(first["test"], second["test"], atol=1e-6)


def test_ifca_sends_what_models_share_once():
    made = worlds.run("ifca", options={"k": 3, "shared": "body."})
    for name, value in worlds.play("ifca", made)["models"].items():
        assert torch.equal(value[0], value[1]) == name.startswith("body.")
    body, head = (P.size(P.part(made.init, prefix)) for prefix in ("body.", "head."))
    count = 3 * len(made.cohort(0))
    assert made.traffic["down"] == count * (body + 3 * head)
    assert made.traffic["up"] == count * (body + head)


@pytest.mark.parametrize("shared", ["", "body."])
def test_ifca_rounds_by_hand(shared):
    made = worlds.run("ifca", participation=1.0, options={"k": 3, "shared": shared})
    state, models = worlds.play("ifca", made), [P.pick(made.starts(3), c) for c in range(3)]
    for model in models:
        model |= {name: made.init[name] for name in model if shared and name.startswith(shared)}
    data, used = made.federation, set()
    for t in range(3):
        chosen = {i: min(range(3), key=lambda c: loss(models[c], data, i)) for i in ABLE}
        sent = {i: worlds.steps(models[chosen[i]], data, i, ("sgd", t)) for i in ABLE}
        whole = mean_of(made, sent, ABLE)
        for c in range(3):
            members = [i for i in ABLE if chosen[i] == c]
            models[c] = mean_of(made, sent, members) if members else models[c]
            models[c] = models[c] | {n: v for n, v in whole.items() if shared and n.startswith(shared)}
        used |= set(chosen.values())
    assert len(used) > 1
    for c in range(3):
        worlds.close(P.pick(state["models"], c), models[c], atol=1e-5)
    assert state["cluster"].tolist() == [chosen.get(i, -1) for i in range(7)]
    if not shared:
        assert made.traffic["down"] == 3 * made.traffic["up"] == 3 * 3 * 6 * P.size(made.init)


def test_ifca_models_start_apart():
    """From one common start all losses are equal, and every client takes the first model for ever."""
    models = worlds.play("ifca", worlds.run("ifca"), last=0)["models"]
    assert len({value.item() for value in models["head.weight"].sum(dim=(1, 2))}) == 4
    made = worlds.run("ifca", participation=1.0)
    common = P.stack([made.init] * 4)
    assert clusters.best(made, common, made.clients).tolist() == [0] * 7


def test_ifca_chooses_without_a_look_at_test_samples():
    made = worlds.run("ifca")
    state = worlds.play("ifca", made)
    before = clusters.best(made, state["models"], made.clients)
    for client in made.clients:
        for split in ("validation", "test"):
            made.federation.y[made.federation.block(client, split)] = 0
    assert clusters.best(made, state["models"], made.clients).tolist() == before.tolist()


def test_ifca_finds_the_clusters():
    data = worlds.clustered()
    made = worlds.run("ifca", data=data, options={"k": 3}, rounds=10, participation=1.0, epochs=2)
    found = worlds.play("ifca", made)["cluster"].numpy()
    assert len({(int(a), int(b)) for a, b in zip(found, data.cluster, strict=True)}) == len(set(found)) == 3
