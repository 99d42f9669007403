"""FedAvg: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

import worlds
from by_hand import build_net, train
from pflcli.core import parameters


def test_fedavg_round_matches_a_hand_computed_model():
    run = worlds.run("fedavg", participation=1.0, epochs=2)
    after = worlds.play("fedavg", run, last=1)["global"]
    data, able = run.federation, [0, 1, 2, 3, 4, 6]  # client 5 has no samples
    n = data.sizes("train")[able]
    models = []
    for client in able:
        rows = data.rows(client, "train")
        models.append(train(run.init, data.x[rows], data.y[rows], 0, ("sgd", 0), client, 2, 4, 0.1))
    for name, value in after.items():
        expected = sum(w / n.sum() * model[name] for w, model in zip(n, models, strict=True))
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert run.traffic["up"] == run.traffic["down"] == 6 * parameters.size(run.init)


def test_fedavg_with_full_batches_equals_centralized_gradient_descent():
    """One epoch of one batch each: the weighted mean of steps is one step on all samples together."""
    run = worlds.run("fedavg", participation=1.0, batch_size=1000, rounds=3)
    after = worlds.play("fedavg", run)["global"]
    data = run.federation
    rows = np.concatenate([data.rows(int(c), "train") for c in run.clients])
    model = build_net(run.init)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model.head(model.body(data.x[rows])), data.y[rows]).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(after[name], value, rtol=1e-4, atol=1e-6)
