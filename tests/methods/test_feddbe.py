"""FedDBE: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from by_hand import descend, detach, minibatch_samples, representation, require_grad
from pflcli.core import parameters
from pflcli.methods import feddbe


def test_feddbe_rounds_match_hand_computed_models():
    run = worlds.run("feddbe", options={"kappa": 3.0})
    data = run.federation
    sizes = data.sizes("train")
    state = worlds.play("feddbe", run)
    trained = [worlds.steps(run.init, data, c, ("consensus", 0)) for c in worlds.ABLE]
    means = [
        representation(w, data.inputs(data.block(c, "train"))).mean(dim=0)
        for c, w in zip(worlds.ABLE, trained, strict=True)
    ]
    consensus = worlds.mean([{"mean": value} for value in means], sizes[worlds.ABLE].tolist())["mean"]
    worlds.close(state["consensus"], {"mean": consensus}, atol=1e-5)
    shared, memories = run.init, {c: torch.zeros(200) for c in range(7)}
    for t in range(3):
        cohort, trained = run.cohort(t).tolist(), []
        for c in cohort:
            w, memory = require_grad(shared), memories[c].clone().requires_grad_()
            for x, y in minibatch_samples(data, c, ("sgd", t)):
                z = representation(w, x)
                out = (z + memory) @ w["head.weight"].T + w["head.bias"]
                loss = functional.cross_entropy(out, y) + 3.0 * (0.5 * (z.mean(dim=0) - consensus) ** 2).mean()
                descend([*w.values(), memory], loss, 0.1)
            memories[c] = memory.detach()
            trained.append(detach(w))
        shared = worlds.mean(trained, sizes[cohort].tolist())
    worlds.close(state["global"], shared, atol=1e-5)
    for c, expected in memories.items():
        worlds.close(parameters.pick(state["memories"][[c]], 0), {"memory": expected}, atol=1e-5)
    assert 0 in state["memories"].written
    actual = worlds.answers("feddbe", run, state, np.asarray([0]))["test"]
    with torch.no_grad():
        z = representation(shared, data.inputs(data.block(0, "test"))) + memories[0]
        expected = torch.softmax(z @ shared["head.weight"].T + shared["head.bias"], 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_feddbe_loss_adds_half_the_squared_distance_to_the_consensus():
    run = worlds.run("feddbe", rounds=1, participation=1.0, batch_size=100, options={"kappa": 30.0})
    state, data = worlds.play("feddbe", run, last=0), run.federation
    before, expected = len(run.notes.losses), []
    feddbe.train_round(run, state, 0)  # one step over all samples of each client
    for c in run.cohort(0).tolist():
        x, y = (values[torch.from_numpy(data.rows(c, "train"))] for values in (data.x, data.y))
        apart = representation(run.init, x).mean(dim=0) - state["consensus"]["mean"]
        loss = functional.cross_entropy(worlds.logits(run.init, x), y) + 30.0 * (0.5 * apart**2).mean()
        expected.append((loss.item(), len(y)))
    actual, wanted = (
        np.average(*np.transpose(pairs)[:1], weights=np.transpose(pairs)[1])
        for pairs in (run.notes.losses[before:], expected)
    )
    assert actual == pytest.approx(wanted, rel=1e-5)


def test_feddbe_sends_models_down_and_means_up_before_the_first_round():
    run = worlds.run("feddbe", rounds=0)
    worlds.play("feddbe", run)
    size = parameters.size(run.init)
    assert run.traffic == {"up": 6 * 200 * 4, "down": 6 * size + 6 * 200 * 4, "peer": 0}


def test_feddbe_newcomer_trains_only_its_memory():
    run = worlds.run("feddbe", options={"newcomer_epochs": 2})
    state = worlds.play("feddbe", run)
    data, shared = run.federation, state["global"]
    new = next(c for c in worlds.ABLE if c not in state["memories"].written and data.sizes("test")[c])
    memory = torch.zeros(200, requires_grad=True)
    for x, y in minibatch_samples(data, new, ("sgd", "newcomer"), epochs=2):
        out = (representation(shared, x) + memory) @ shared["head.weight"].T + shared["head.bias"]
        descend([memory], functional.cross_entropy(out, y), 0.1)
    actual = worlds.answers("feddbe", run, state, np.asarray([new]))["test"]
    with torch.no_grad():
        out = (representation(shared, data.inputs(data.block(new, "test"))) + memory) @ shared["head.weight"].T
        expected = torch.softmax(out + shared["head.bias"], 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
