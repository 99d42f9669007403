"""FedDyn: rounds worked out by hand, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from by_hand import gradient, minibatches, require_grad, sample_counts
from pflcli.core import parameters


def test_feddyn_rounds_match_hand_computed_models(mode, monkeypatch):
    run = worlds.run("feddyn", mode=mode, epochs=2, rounds=4, options={"alpha": 0.6})
    two_clients = 6 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state, data, alpha = worlds.play("feddyn", run), run.federation, 0.6
    theta, total = run.init, data.sizes("train").sum()
    zero = {name: torch.zeros_like(value) for name, value in theta.items()}
    h, g, times = zero, dict.fromkeys(range(7), zero), np.zeros(7)
    for t in range(4):
        cohort, trained = run.cohort(t).tolist(), []
        for k in cohort:
            own = theta
            for rows in minibatches(data, k, ("sgd", t), epochs=2):
                slope = gradient(own, data, rows)
                own = {n: v - 0.1 * (slope[n] - g[k][n] + alpha * (v - theta[n])) for n, v in own.items()}
            g[k] = {n: g[k][n] - alpha * (own[n] - theta[n]) for n in own}
            h = {n: h[n] - alpha * len(data.rows(k, "train")) / total * (own[n] - theta[n]) for n in own}
            trained.append(own)
        mean = worlds.mean(trained, sample_counts(run, cohort))
        theta = {n: v - h[n] / alpha for n, v in mean.items()}
        times[cohort] += 1
    assert (times > 1).any()  # a client used its memory
    assert (times[worlds.ABLE] < 4).all()
    worlds.close(state["global"], theta, atol=1e-5)
    worlds.close(state["h"], h, atol=1e-5)
    for k, expected in g.items():
        memory = parameters.pick(state["memories"][[k]], 0)
        worlds.close(memory, {name: value / alpha for name, value in expected.items()}, atol=1e-5)
    drawn = int(times.sum())
    assert run.traffic == {"up": drawn * parameters.size(theta), "down": drawn * parameters.size(theta), "peer": 0}


def test_memory_becomes_the_gradient_at_the_minimum():
    """A client that finds its minimum remembers the gradient of its loss there (section 2 of the paper)."""
    settings = {"model": "logistic", "participation": 1.0, "rounds": 1, "epochs": 300, "batch_size": 100}
    run = worlds.run("feddyn", options={"alpha": 2.0}, **settings)
    state, data = worlds.play("feddyn", run), run.federation
    (part,) = run.local_sgd(run.cohort(0), run.init, t=0, prox=(run.init, 2.0))
    for position, client in enumerate(part.clients.tolist()):
        w = require_grad(parameters.pick(part.params, position))
        rows = data.block(client, "train")
        out = data.inputs(rows) @ w["head.weight"].T + w["head.bias"]
        slope = torch.autograd.grad(functional.cross_entropy(out, data.y[rows]), list(w.values()))
        memory = {name: 2.0 * value for name, value in parameters.pick(state["memories"][[client]], 0).items()}
        worlds.close(memory, dict(zip(w, slope, strict=True)), atol=1e-4)
        assert memory["head.weight"].abs().max() > 1e-2


def test_first_round_of_feddyn_is_fedprox_with_its_step_doubled():
    """Without memories clients train as in FedProx; with all clients, the server goes the same way once more."""
    settings = {"participation": 1.0, "rounds": 1}
    near = worlds.play("fedprox", worlds.run("fedprox", options={"mu": 0.3}, **settings))["global"]
    run = worlds.run("feddyn", options={"alpha": 0.3}, **settings)
    expected = {name: 2 * value - run.init[name] for name, value in near.items()}
    worlds.close(worlds.play("feddyn", run)["global"], expected)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_feddyn_averages_running_statistics_and_corrects_parameters_alone(mode):
    run, _ = worlds.normalized("feddyn", mode)
    state = worlds.play("feddyn", run, last=1)
    assert set(state["h"]) == set(state["memories"].default) == set(run.engine.parameters)
    start, cohort = run.init, run.cohort(0)
    (part,) = run.local_sgd(cohort, start, t=0, prox=(start, 0.1))
    models = [parameters.pick(part.params, position) for position in range(len(cohort))]
    mean = worlds.mean(models, sample_counts(run, part.clients))
    worlds.close({"mean": state["global"]["body.2.running_mean"]}, {"mean": mean["body.2.running_mean"]})
