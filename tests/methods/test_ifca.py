"""IFCA: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import client_loss, mean_members
from pflcli.core import parameters
from pflcli.methods.parts import clusters

UNASSIGNED = np.full(7, -1)


def test_ifca_with_one_model_equals_fedavg():
    runs = [worlds.run("fedavg"), worlds.run("ifca", options={"k": 1})]
    expected, actual = (worlds.play(name, run) for name, run in zip(("fedavg", "ifca"), runs, strict=True))
    assert worlds.same(expected["global"], parameters.pick(actual["models"], 0))
    assert runs[0].traffic == runs[1].traffic
    first, second = worlds.answers("fedavg", runs[0], expected), worlds.answers("ifca", runs[1], actual)
    np.testing.assert_allclose(first["test"], second["test"], atol=1e-6)


def test_ifca_sends_shared_layers_once_per_client():
    run = worlds.run("ifca", options={"k": 3, "shared": "body."})
    for name, value in worlds.play("ifca", run)["models"].items():
        assert torch.equal(value[0], value[1]) == name.startswith("body.")
    body, head = (parameters.size(parameters.part(run.init, prefix)) for prefix in ("body.", "head."))
    count = 3 * len(run.cohort(0))
    assert run.traffic["down"] == count * (body + 3 * head)
    assert run.traffic["up"] == count * (body + head)


@pytest.mark.parametrize("shared", ["", "body."])
def test_ifca_rounds_match_hand_computed_models(shared):
    run = worlds.run("ifca", participation=1.0, options={"k": 3, "shared": shared})
    state, models = worlds.play("ifca", run), [parameters.pick(run.initial_models(3), c) for c in range(3)]
    for model in models:
        model |= {name: run.init[name] for name in model if shared and name.startswith(shared)}
    data, used = run.federation, set()
    for t in range(3):
        chosen = {i: min(range(3), key=lambda c: client_loss(models[c], data, i)) for i in worlds.ABLE}
        uploads = {i: worlds.steps(models[chosen[i]], data, i, ("sgd", t)) for i in worlds.ABLE}
        overall_mean = mean_members(run, uploads, worlds.ABLE)
        for c in range(3):
            members = [i for i in worlds.ABLE if chosen[i] == c]
            models[c] = mean_members(run, uploads, members) if members else models[c]
            models[c] = models[c] | {n: v for n, v in overall_mean.items() if shared and n.startswith(shared)}
        used |= set(chosen.values())
    assert len(used) > 1
    for c in range(3):
        worlds.close(parameters.pick(state["models"], c), models[c], atol=1e-5)
    assert state["cluster"].tolist() == [chosen.get(i, -1) for i in range(7)]
    if not shared:
        assert run.traffic["down"] == 3 * run.traffic["up"] == 3 * 3 * 6 * parameters.size(run.init)


def test_ifca_starts_from_different_models():
    """From one common start all losses are equal, and every client takes the first model for ever."""
    models = worlds.play("ifca", worlds.run("ifca"), last=0)["models"]
    assert len({value.item() for value in models["head.weight"].sum(dim=(1, 2))}) == 4
    run = worlds.run("ifca", participation=1.0)
    common = parameters.stack([run.init] * 4)
    assert clusters.find_best(run, common, run.clients, UNASSIGNED).tolist() == [0] * 7


def test_find_best_gives_a_client_without_samples_the_most_common_model():
    run = worlds.run("ifca")
    chosen = clusters.find_best(run, run.initial_models(3), np.asarray([5]), np.asarray([2, -1, 0, 2, -1, -1, -1]))
    assert chosen.tolist() == [2]


def test_ifca_chooses_models_by_training_samples_only():
    run = worlds.run("ifca")
    state = worlds.play("ifca", run)
    before = clusters.find_best(run, state["models"], run.clients, UNASSIGNED)
    for client in run.clients:
        for split in ("validation", "test"):
            run.federation.y[run.federation.block(client, split)] = 0
    assert clusters.find_best(run, state["models"], run.clients, UNASSIGNED).tolist() == before.tolist()


def test_ifca_recovers_the_known_clusters():
    data = worlds.clustered()
    run = worlds.run("ifca", data=data, options={"k": 3}, rounds=10, participation=1.0, epochs=2)
    actual = worlds.play("ifca", run)["cluster"].numpy()
    assert len({(int(a), int(b)) for a, b in zip(actual, data.cluster, strict=True)}) == len(set(actual)) == 3
