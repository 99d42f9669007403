"""FedAS: rounds worked out by hand, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from by_hand import body_of, gradient, minibatch_samples, minibatches, representation
from pflcli.core import parameters
from pflcli.methods import fedas


def align(body, own, data, client, key, lr):
    """The body after steps towards the mean features of the client's own body."""
    rows = data.block(client, "train")
    y, z = data.y[rows], representation(own, data.inputs(rows))
    means = {k: z[y == k].mean(dim=0) for k in y.unique().tolist()}
    w = {name: value.clone().requires_grad_() for name, value in body.items()}
    for x, y in minibatch_samples(data, client, key):
        z = representation(w, x)
        loss = sum(((z[y == k] - means[k]) ** 2).mean() for k in y.unique().tolist())
        for value, grad in zip(w.values(), torch.autograd.grad(loss, list(w.values())), strict=True):
            value.data -= lr * grad
    return {name: value.detach() for name, value in w.items()}


def fisher_trace(w, data, client, t):
    """The sum over minibatches of the squared norm of the gradient of their mean loss."""
    total = 0.0
    for rows in minibatches(data, client, ("fisher", t)):
        total += sum(float(value.square().sum()) for value in gradient(w, data, rows).values())
    return total


def test_fedas_rounds_match_hand_computed_models(mode, monkeypatch):
    run = worlds.run("fedas", mode=mode, rounds=4, options={"align_lr": 0.5})
    two_clients = 6 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state, data = worlds.play("fedas", run), run.federation
    body, models, times = body_of(run.init), {}, np.zeros(7)
    for t in range(4):
        cohort, weights = run.cohort(t).tolist(), []
        for c in cohort:
            start = {**run.init, **body}
            if c in models:
                start = {**models[c], **align(body, models[c], data, c, ("align", t), 0.5)}
            models[c] = worlds.steps(start, data, c, ("sgd", t))
            weights.append(fisher_trace(models[c], data, c, t))
        body = worlds.mean([body_of(models[c]) for c in cohort], weights)
        times[cohort] += 1
    assert (times > 1).any()  # a client aligned the body to its own one
    assert (times[worlds.ABLE] < 4).all()
    worlds.close(state["body"], body, atol=1e-5)
    for c, expected in models.items():
        worlds.close(parameters.pick(state["models"][[c]], 0), expected, atol=1e-5)
        actual = worlds.answers("fedas", run, state, np.asarray([c]))["test"]
        np.testing.assert_allclose(actual, worlds.probabilities(expected, data, c), atol=1e-5)
    sent = int(times.sum()) * parameters.size(body)
    assert run.traffic == {"up": sent, "down": sent, "peer": 0}


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedas_without_alignment_and_synchronization_has_the_bytes_of_fedper(mode):
    states = []
    for name, options in (("fedper", {}), ("fedas", {"align_epochs": 0, "synchronize": False})):
        run = worlds.run(name, mode=mode, rounds=4, options=options)
        states.append(worlds.play(name, run))
    assert worlds.same(states[0]["body"], states[1]["body"])
    seen = states[0]["heads"].written
    assert worlds.same(states[0]["heads"][seen], {n: states[1]["models"][seen][n] for n in states[0]["heads"].default})


def test_alignment_brings_features_nearer_to_those_of_the_own_body():
    run = worlds.run("fedas", participation=1.0, options={"align_lr": 0.5, "align_epochs": 20})
    state, data = worlds.play("fedas", run, last=1), run.federation
    ids = np.asarray([0, 1])
    own, start = state["models"][ids], fedas._align(run, state["models"], ids, state["body"], 1)
    for position, client in enumerate(ids.tolist()):
        rows = data.block(client, "train")
        x, y = data.inputs(rows), data.y[rows]
        target = representation(parameters.pick(own, position), x)
        means = torch.stack([target[y == k].mean(dim=0) for k in y.tolist()])
        before, after = (
            (representation(w, x) - means).square().mean() for w in (state["body"], parameters.pick(start, position))
        )
        assert after < 0.8 * before
        assert torch.equal(start["head.weight"][position], own["head.weight"][position])


def test_newcomer_of_fedas_trains_the_initial_head_and_the_last_body():
    run = worlds.run("fedas", options={"newcomer_epochs": 2})
    state = worlds.play("fedas", run)
    new = next(c for c in worlds.ABLE if c not in state["models"].written and run.federation.sizes("test")[c])
    model = worlds.steps({**run.init, **state["body"]}, run.federation, new, ("sgd", "newcomer"), epochs=2)
    actual = worlds.answers("fedas", run, state, np.asarray([new]))["test"]
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, new), atol=1e-5)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fisher_traces_are_those_in_evaluation_mode(mode):
    run, net = worlds.normalized("fedas", mode)
    state, data = worlds.play("fedas", run, last=1), run.federation
    ids = state["models"].written
    models = state["models"][ids]
    before, expected = {name: value.clone() for name, value in models.items()}, []
    for position, client in enumerate(ids.tolist()):
        net.load_state_dict(parameters.pick(models, position))
        net.eval()
        total = 0.0
        for rows in minibatches(data, client, ("fisher", 0), batch=3):
            loss = functional.cross_entropy(net.head(net.body(data.inputs(rows))), data.y[rows])
            total += sum(float(value.square().sum()) for value in torch.autograd.grad(loss, list(net.parameters())))
        expected.append(total)
    np.testing.assert_allclose(fedas._fisher_traces(run, ids, models, 0), expected, rtol=1e-4)
    worlds.close(models, before, atol=0)  # nor do statistics change
