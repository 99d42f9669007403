"""Per-FedAvg: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import torch

import worlds
from by_hand import gradient, minibatches, move, sample_counts
from pflcli.core import parameters
from pflcli.core.engine import gradients
from pflcli.methods import per_fedavg


def test_per_fedavg_round_matches_a_hand_computed_model(mode):
    run = worlds.run("per-fedavg", mode=mode, participation=1.0, epochs=2, options={"alpha": 0.2})
    actual = worlds.play("per-fedavg", run, last=1)["global"]
    data, trained = run.federation, []
    for c in worlds.ABLE:
        w = run.init
        for rows in minibatches(data, c, ("sgd", 0), epochs=2, batch=8):
            first, second = (rows[::2], rows[1::2]) if len(rows) >= 4 else (rows, rows)
            w = move(w, gradient(move(w, gradient(w, data, first), 0.2), data, second), 0.1)
        trained.append(w)
    worlds.close(actual, worlds.mean(trained, sample_counts(run, worlds.ABLE)), atol=1e-5)
    assert run.traffic["up"] == run.traffic["down"] == 6 * parameters.size(run.init)


def test_inner_and_outer_gradients_use_different_samples():
    def halves(weights):
        weight = torch.tensor(weights)
        places = torch.arange(weight.shape[1]).expand(len(weight), -1)
        return per_fedavg._halves(gradients.StackedBatch(places.double(), places, weight, {}, {}, worlds.TASK))

    first, second = halves([[0.1] * 10])
    assert sorted([*first.y[0].tolist(), *second.y[0].tolist()]) == list(range(10))
    first, second = halves([[1 / 7] * 7 + [0.0] * 3])
    assert first.y[first.weight > 0].tolist() == [0, 2, 4, 6]
    assert second.y[second.weight > 0].tolist() == [1, 3, 5]
    torch.testing.assert_close(first.weight.sum(dim=1), torch.ones(1))
    torch.testing.assert_close(second.weight.sum(dim=1), torch.ones(1))
    by_places = [half.y[half.weight > 0].tolist() for half in halves([[1 / 8] * 8, [1 / 5] * 5 + [0.0] * 3])]
    assert by_places == [[0, 2, 4, 6, 0, 2, 4], [1, 3, 5, 7, 1, 3]]
    # Fewer than four samples are not cut, alone or beside a client that has enough.
    few, enough = [1 / 3] * 3 + [0.0] * 5, [1 / 8] * 8
    for half in halves([few]):
        assert half.y[half.weight > 0].tolist() == [0, 1, 2]
    for first_place, half in enumerate(halves([few, enough])):
        assert half.y[0][half.weight[0] > 0].tolist() == [0, 1, 2]
        assert half.y[1][half.weight[1] > 0].tolist() == list(range(first_place, 8, 2))
        torch.testing.assert_close(half.weight.sum(dim=1), torch.ones(2))


def test_per_fedavg_fine_tunes_at_learning_rate_alpha():
    run = worlds.run("per-fedavg", options={"alpha": 0.2, "epochs": 2})
    state = worlds.play("per-fedavg", run)
    actual = worlds.answers("per-fedavg", run, state, np.asarray([0]))
    model = worlds.steps(state["global"], run.federation, 0, ("sgd", "fine-tune"), epochs=2, lr=0.2)
    np.testing.assert_allclose(actual["test"], worlds.probabilities(model, run.federation, 0), atol=1e-6)
