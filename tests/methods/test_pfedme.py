"""pFedMe: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from by_hand import gradient, minibatches, sample_counts
from pflcli.methods import pfedme


def test_pfedme_rounds_match_hand_computed_models(mode):
    options = {"lam": 2.0, "inner_steps": 3, "inner_lr": 0.05, "lr": 0.2, "beta": 0.6}
    run = worlds.run("pfedme", mode=mode, options=options)
    actual = worlds.play("pfedme", run)["global"]
    data, shared = run.federation, run.init
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            w = shared
            for rows in minibatches(data, c, ("sgd", t)):
                theta = w
                for _ in range(3):
                    grad = gradient(theta, data, rows)
                    theta = {n: v - 0.05 * (grad[n] + 2.0 * (v - w[n])) for n, v in theta.items()}
                w = {n: v - 0.2 * 2.0 * (v - theta[n]) for n, v in w.items()}
            trained.append(w)
        mean = worlds.mean(trained, sample_counts(run, cohort))
        shared = {n: v + 0.6 * (mean[n] - v) for n, v in shared.items()}
    worlds.close(actual, shared, atol=1e-5)


def test_pfedme_with_one_inner_step_equals_fedavg_when_rates_multiply_to_lr():
    """theta = w - inner_lr grad F(w), so w moves by lr lambda inner_lr grad F(w): lr 0.1 in all."""
    run = worlds.run("pfedme", options={"lam": 4.0, "inner_steps": 1, "inner_lr": 0.05, "lr": 0.5})
    worlds.close(worlds.play("pfedme", run)["global"], worlds.play("fedavg", worlds.run("fedavg"))["global"])


@pytest.mark.parametrize("options", [{"lam": 4.0}, {"lam": 0.3, "inner_lr": 0.2}, {}])
def test_pfedme_with_one_inner_step_equals_fedavg_for_any_lambda(options):
    """By default the global model moves as fast as that of FedAvg; by five steps too, where they are short."""
    expected = worlds.play("fedavg", worlds.run("fedavg"))["global"]
    run = worlds.run("pfedme", options={"inner_steps": 1, **options})
    worlds.close(worlds.play("pfedme", run)["global"], expected, atol=1e-5)
    many = worlds.play("pfedme", worlds.run("pfedme", options={**options, "inner_lr": 1e-3}))["global"]
    moved, meant = (sum(float((w[n] - run.init[n]).norm()) for n in w) for w in (many, expected))
    assert moved == pytest.approx(meant, rel=0.05)


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9, "weight_decay": 0.1, "clip_gradients": 0.3},
        {"optimizer": "adam", "lr": 0.01},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.5, "clip_gradients": 0.3},
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_pfedme_with_one_inner_step_equals_fedavg_for_every_optimizer(settings):
    expected = worlds.play("fedavg", worlds.run("fedavg", **settings))["global"]
    run = worlds.run("pfedme", options={"inner_steps": 1}, **settings)
    for name, value in worlds.play("pfedme", run)["global"].items():
        assert float((value - expected[name]).abs().mean()) < 1e-3, name


def test_share_is_at_most_1_when_inner_steps_overshoot():
    assert pfedme._share(pfedme.Config(lam=2.0, inner_lr=0.1, inner_steps=2)) == pytest.approx(0.36)
    assert pfedme._share(pfedme.Config(lam=15.0, inner_lr=0.13, inner_steps=4)) == 1


def test_pfedme_predicts_with_theta():
    run = worlds.run("pfedme", options={"epochs": 2, "lam": 15.0})
    state = worlds.play("pfedme", run)
    actual = worlds.answers("pfedme", run, state, np.asarray([0]))
    plan = {"epochs": 2, "lr": 0.05}
    shared = state["global"]
    model = worlds.steps(shared, run.federation, 0, ("sgd", "theta"), anchor=shared, pull=15.0, **plan)
    np.testing.assert_allclose(actual["test"], worlds.probabilities(model, run.federation, 0), atol=1e-6)
