"""APFL: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import gradient, minibatches, move, sample_counts
from pflcli.core import parameters


def apfl_steps(v, w, alpha, data, client, key, epochs=1, lr=0.1):
    """Both models move at once, v by the chain rule at the mixture of weights."""
    for rows in minibatches(data, client, key, epochs=epochs):
        mixed = {name: alpha * v[name] + (1 - alpha) * w[name] for name in v}
        at_mixture, at_global = gradient(mixed, data, rows), gradient(w, data, rows)
        v, w = move(v, at_mixture, lr * alpha), move(w, at_global, lr)
    return v, w


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_rounds_match_hand_computed_models(mode, adaptive, monkeypatch):
    run = worlds.run("apfl", mode=mode, epochs=2, options={"alpha": 0.3, "adaptive": adaptive, "alpha_lr": 5.0})
    two_clients = 4 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state = worlds.play("apfl", run)
    data, w, alpha = run.federation, run.init, np.full(7, 0.3)
    v = dict.fromkeys(range(7), w)
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            if adaptive:
                mixed = {name: alpha[c] * v[c][name] + (1 - alpha[c]) * w[name] for name in w}
                grad = gradient({n: x.float() for n, x in mixed.items()}, data, torch.from_numpy(data.rows(c, "train")))
                slope = sum(((v[c][name] - w[name]) * grad[name]).sum().item() for name in w)
                alpha[c] = min(max(alpha[c] - 5.0 * slope, 0), 1)
            v[c], local = apfl_steps(v[c], w, float(alpha[c]), data, c, ("sgd", t), epochs=2)
            trained.append(local)
        w = worlds.mean(trained, sample_counts(run, cohort))
    worlds.close(state["global"], w, atol=1e-5)
    np.testing.assert_allclose(state["alpha"].numpy(), alpha, atol=1e-4)
    assert (np.ptp(alpha) > 0.01) == adaptive
    for c, expected in v.items():
        worlds.close(parameters.pick(state["local"][[c]], 0), expected, atol=1e-4)
    c = 0
    assert c in state["local"].written
    mixed = {name: (alpha[c] * v[c][name] + (1 - alpha[c]) * w[name]).float() for name in w}
    actual = worlds.answers("apfl", run, state, np.asarray([c]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(mixed, data, c), atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"clip_gradients": 0.3, "momentum": 0.9, "weight_decay": 0.1}])
def test_apfl_trains_the_global_model_like_fedavg(settings):
    runs = [worlds.run(name, **settings) for name in ("fedavg", "apfl")]
    expected, actual = (worlds.play(*args)["global"] for args in zip(("fedavg", "apfl"), runs, strict=True))
    worlds.close(actual, expected)
    assert runs[0].traffic == runs[1].traffic


def test_apfl_with_alpha_0_predicts_like_fedavg():
    run = worlds.run("apfl", options={"alpha": 0.0})
    state = worlds.play("apfl", run)
    actual = worlds.answers("apfl", run, state)["test"]
    np.testing.assert_allclose(actual, worlds.answers("fedavg", run, state)["test"], atol=1e-6)


def test_apfl_with_alpha_1_equals_local_training():
    run = worlds.run("apfl", participation=1.0, options={"alpha": 1.0})
    state = worlds.play("apfl", run)
    for c in worlds.ABLE:
        expected = run.init
        for t in range(3):
            expected = worlds.steps(expected, run.federation, c, ("sgd", t))
        worlds.close(parameters.pick(state["local"][[c]], 0), expected)


def test_apfl_adaptive_alpha_stays_between_0_and_1():
    run = worlds.run("apfl", participation=1.0, options={"adaptive": True, "alpha_lr": 1e4})
    alpha = worlds.play("apfl", run)["alpha"]
    assert alpha.min() >= 0
    assert alpha.max() <= 1
    assert len(alpha.unique()) > 1


def test_apfl_personalizes_a_newcomer_from_the_global_model():
    run = worlds.run("apfl", options={"alpha": 0.3, "newcomer_epochs": 2})
    state = worlds.play("apfl", run)
    new = next(c for c in worlds.ABLE if c not in state["local"].written and run.federation.sizes("test")[c])
    w = state["global"]
    v, _ = apfl_steps(w, w, 0.3, run.federation, new, ("sgd", "newcomer"), epochs=2)
    mixed = {name: 0.3 * v[name] + 0.7 * w[name] for name in w}
    actual = worlds.answers("apfl", run, state, np.asarray([new]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(mixed, run.federation, new), atol=1e-5)
