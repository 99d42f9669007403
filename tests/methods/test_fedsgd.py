"""FedSGD: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from pflcli.core import rng


def test_fedsgd_equals_fedavg_with_one_full_batch():
    one = worlds.run("fedavg", epochs=1, batch_size=1000)
    expected = worlds.play("fedavg", one)
    run = worlds.run("fedsgd", epochs=7, batch_size=2, momentum=0.9)
    assert worlds.same(worlds.play("fedsgd", run), expected)
    assert run.traffic == one.traffic


def test_fedsgd_round_is_one_gradient_step_on_all_samples():
    run = worlds.run("fedsgd", participation=1.0)
    actual = worlds.play("fedsgd", run, last=1)["global"]
    data = run.federation
    rows = torch.from_numpy(np.concatenate([data.rows(c, "train") for c in worlds.ABLE]))
    w = {name: value.clone().requires_grad_() for name, value in run.init.items()}
    grads = torch.autograd.grad(
        functional.cross_entropy(worlds.logits(w, data.inputs(rows)), data.y[rows]), list(w.values())
    )
    worlds.close(
        actual, {name: (value - 0.1 * grad).detach() for (name, value), grad in zip(w.items(), grads, strict=True)}
    )


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedsgd_with_minibatches_matches_hand_computed_models(mode):
    """One minibatch per client and round, another one in the next, weighted by all of a client's samples."""
    run = worlds.run("fedsgd", participation=1.0, mode=mode, epochs=3, options={"batch": "minibatch"})
    data, w = run.federation, run.init
    n = data.sizes("train")[worlds.ABLE].tolist()
    for t in range(2):
        stepped = []
        for client in worlds.ABLE:
            rows = data.rows(client, "train")
            rows = torch.from_numpy(rows[rng.generator(0, "sgd", t, client).permutation(len(rows))[:4]])
            leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
            loss = functional.cross_entropy(worlds.logits(leaves, data.inputs(rows)), data.y[rows])
            grads = torch.autograd.grad(loss, list(leaves.values()))
            stepped.append({k: (v - 0.1 * g).detach() for (k, v), g in zip(leaves.items(), grads, strict=True)})
        w = worlds.mean(stepped, n)
    worlds.close(worlds.play("fedsgd", run, last=2)["global"], w)
    one_minibatch = worlds.run("fedsgd", participation=1.0, mode=mode, batch_size=1000, options={"batch": "minibatch"})
    full = worlds.play("fedsgd", worlds.run("fedsgd", participation=1.0, mode=mode))["global"]
    worlds.close(worlds.play("fedsgd", one_minibatch)["global"], full)
