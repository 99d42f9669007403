"""FedHealth: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import math

import numpy as np
import torch

import worlds
from by_hand import compute_loss, minibatches, representation
from pflcli.methods import fedhealth


def test_fedhealth_public_set_takes_the_given_share_of_each_client_and_counts_as_traffic():
    run = worlds.run("fedhealth", options={"public": 0.3}, rounds=0)
    rows = fedhealth._draw_public_rows(run, run.federation.seen_clients)
    for c in run.clients:
        own_rows = run.federation.rows(int(c), "train")
        assert np.isin(rows, own_rows).sum() == math.ceil(0.3 * len(own_rows))
    assert len(set(rows.tolist())) == len(rows)
    worlds.play("fedhealth", run)
    assert run.traffic["up"] == len(rows) * (4 * worlds.FEATURES + 8)
    assert run.traffic["down"] == len(rows) * 4 * worlds.FEATURES * 7
    other = worlds.run("fedhealth", options={"public": 0.3}, rounds=0, seed=1)
    assert not np.array_equal(rows, fedhealth._draw_public_rows(other, other.federation.seen_clients))


def test_fedhealth_trains_the_cloud_model_on_the_public_set(mode):
    run = worlds.run("fedhealth", mode=mode, options={"cloud_epochs": 3}, rounds=0)
    actual = worlds.play("fedhealth", run)["global"]
    data = run.federation.pooled(fedhealth._draw_public_rows(run, run.federation.seen_clients))
    worlds.close(actual, worlds.steps(run.init, data, 0, ("server", "cloud"), epochs=3))


def test_fedhealth_rounds_are_fedavg_from_the_cloud_model():
    run = worlds.run("fedhealth")
    start = worlds.play("fedhealth", run, last=0)
    actual = worlds.play("fedhealth", run, state=start)["global"]
    assert worlds.same(actual, worlds.play("fedavg", worlds.run("fedavg"), state=start)["global"])


def test_fedhealth_transfer_matches_hand_computed_models(mode):
    options = {"weight": 30.0, "aligned": 3, "epochs": 2, "lr": 0.05, "public": 0.2}
    run = worlds.run("fedhealth", mode=mode, options=options, rounds=1)
    state = worlds.play("fedhealth", run)
    actual = worlds.answers("fedhealth", run, state, np.asarray([0, 6]))["test"]
    data, public = run.federation, fedhealth._draw_public_rows(run, run.federation.seen_clients)
    public = data.x[public[run.rng("aligned").permutation(len(public))[:3]]]
    expected = []
    for c in (0, 6):
        w = dict(state["global"])
        for rows in minibatches(data, c, ("sgd", "transfer"), epochs=2):
            at = {name: value.clone().requires_grad_(not name.startswith("body.1.")) for name, value in w.items()}
            z, far = (representation(at, x) for x in (data.x[rows], public))
            apart = (covariance(z) - covariance(far)).pow(2).sum() / (4 * 200**2)
            loss = compute_loss(at, data, rows) + 30.0 * apart
            chosen = [name for name, value in at.items() if value.requires_grad]
            grads = torch.autograd.grad(loss, [at[name] for name in chosen])
            w |= {name: w[name] - 0.05 * grad for name, grad in zip(chosen, grads, strict=True)}
        expected.append(worlds.probabilities(w, data, c))
    np.testing.assert_allclose(actual, np.concatenate(expected), atol=1e-5)


def covariance(z):
    return torch.cov(z.T, correction=0)


def test_fedhealth_with_weight_0_equals_fine_tuning_of_the_upper_layers():
    run = worlds.run("fedhealth", options={"weight": 0.0, "upper": 1, "epochs": 2})
    state = worlds.play("fedhealth", run)
    actual = worlds.answers("fedhealth", run, state, np.asarray([0]))["test"]
    plan = {"epochs": 2, "trainable": "head."}
    model = worlds.steps(state["global"], run.federation, 0, ("sgd", "transfer"), **plan)
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, 0), atol=1e-6)
