"""FedALA: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from by_hand import minibatch_samples
from pflcli.core import parameters


def test_fedala_rounds_match_hand_computed_models():
    options = {"eta": 20.0, "first_epochs": 3, "weight_epochs": 2, "newcomer_epochs": 0}
    run = worlds.run("fedala", participation=1.0, rounds=4, options=options)
    state = worlds.play("fedala", run)
    data, shared, local, weights = run.federation, run.init, {}, {}

    def mixture(c, key):
        """The model of a client before it trains, and what it learned of how to mix it."""
        if c not in local:
            return dict(shared), None
        epochs = 2 if c in weights else 3
        w = dict(weights.get(c) or {name: torch.ones_like(value) for name, value in local[c].items()})
        for x, y in minibatch_samples(data, c, key, epochs=epochs):
            mixed = {n: (local[c][n] + (shared[n] - local[c][n]) * w[n]).detach().requires_grad_() for n in local[c]}
            grads = torch.autograd.grad(
                functional.cross_entropy(worlds.logits({**shared, **mixed}, x), y), mixed.values()
            )
            for name, grad in zip(mixed, grads, strict=True):
                w[name] = (w[name] - 20.0 * grad * (shared[name] - local[c][name])).clamp(0, 1)
        return {**shared, **{n: local[c][n] + (shared[n] - local[c][n]) * w[n] for n in local[c]}}, w

    for t in range(4):
        trained = []
        learned = {c: mixture(c, ("weights", t)) for c in worlds.ABLE}
        for c, (start, w) in learned.items():
            trained.append(worlds.steps(start, data, c, ("sgd", t)))
            local[c] = parameters.part(trained[-1], "head.")
            weights |= {c: w} if w else {}
        shared = worlds.mean(trained, data.sizes("train")[worlds.ABLE].tolist())
    worlds.close(state["global"], shared, atol=1e-5)
    for c in worlds.ABLE:
        worlds.close(parameters.pick(state["local"][[c]], 0), local[c], atol=1e-5)
        worlds.close(parameters.pick(state["weights"][[c]], 0), weights[c], atol=1e-4)
    assert any(0 < float(value.min()) < 1 for w in weights.values() for value in w.values())
    assert all(float(value.min()) >= 0 and float(value.max()) <= 1 for w in weights.values() for value in w.values())
    model, _ = mixture(0, ("weights", "personalize"))
    actual = worlds.answers("fedala", run, state, np.asarray([0]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(model, data, 0), atol=1e-4)


@pytest.mark.parametrize("upper", [1, 2, 9])
def test_fedala_equals_fedavg_when_eta_is_0(upper):
    runs = [worlds.run("fedavg"), worlds.run("fedala", options={"eta": 0.0, "upper": upper, "newcomer_epochs": 0})]
    states = [worlds.play(*args) for args in zip(("fedavg", "fedala"), runs, strict=True)]
    assert worlds.same(states[0]["global"], states[1]["global"])
    assert runs[0].traffic == runs[1].traffic
    actual = [worlds.answers(*args)["test"] for args in zip(("fedavg", "fedala"), runs, states, strict=True)]
    np.testing.assert_allclose(actual[0], actual[1], atol=1e-6)


def test_fedala_trains_the_last_mixture_for_final_epochs():
    run = worlds.run("fedala", options={"final_epochs": 2, "eta": 0.0})
    state = worlds.play("fedala", run)
    client = int(next(c for c in state["local"].written if run.federation.sizes("test")[c]))
    actual = worlds.answers("fedala", run, state, np.asarray([client]))["test"]
    model = worlds.steps(state["global"], run.federation, client, ("sgd", "final"), epochs=2)
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, client), atol=1e-5)
