"""SCAFFOLD: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import worlds
from by_hand import gradient, minibatches, sample_counts
from pflcli.core import parameters
from pflcli.core.engine.local_sgd import steps_per_epoch
from pflcli.core.errors import UsageError


def test_scaffold_rounds_match_hand_computed_models(mode, monkeypatch):
    run = worlds.run("scaffold", mode=mode, epochs=2, options={"server_lr": 0.7}, momentum=0.9)
    two_clients = 6 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state = worlds.play("scaffold", run)
    data, x = run.federation, run.init
    zero = {name: torch.zeros_like(value) for name, value in x.items()}
    c, own, total = zero, dict.fromkeys(range(7), zero), data.sizes("train").sum()
    for t in range(3):
        cohort, trained, change = run.cohort(t).tolist(), [], zero
        for i in cohort:
            y, met, count = x, zero, 0
            for rows in minibatches(data, i, ("sgd", t), epochs=2):
                grad = gradient(y, data, rows)
                y = {n: v - 0.1 * (grad[n] - own[i][n] + c[n]) for n, v in y.items()}
                met, count = {n: met[n] + grad[n] for n in met}, count + 1
            mean_gradient = {n: v / count for n, v in met.items()}
            share = len(data.rows(i, "train")) / total
            change = {n: change[n] + share * (mean_gradient[n] - own[i][n]) for n in change}
            own[i] = mean_gradient
            trained.append(y)
        mean = worlds.mean(trained, sample_counts(run, cohort))
        x = {n: v + 0.7 * (mean[n] - v) for n, v in x.items()}
        c = {n: v + change[n] for n, v in c.items()}
    worlds.close(state["global"], x, atol=1e-5)
    worlds.close(state["control"], c, atol=1e-4)
    for i, expected in own.items():
        worlds.close(parameters.pick(state["controls"][[i]], 0), expected, atol=1e-4)
    drawn = sum(len(run.cohort(t)) for t in range(3))
    assert run.traffic["up"] == run.traffic["down"] == 2 * drawn * parameters.size(x)


def test_scaffold_divides_by_the_given_number_of_steps():
    run = worlds.run("scaffold", steps=5, participation=1.0)
    state = worlds.play("scaffold", run, last=1)
    for part in run.local_sgd(run.cohort(0), run.init, t=0):  # without control variates yet, plain steps
        met = {name: (run.init[name] - part.params[name]) / (5 * 0.1) for name in run.engine.parameters}
        worlds.close(state["controls"][part.clients], met, atol=1e-5)


def test_scaffold_does_not_count_a_last_batch_joined_to_the_previous_one():
    """Batch normalization needs more than one sample, so that a last batch of one sample is no step of its own."""
    run, _ = worlds.normalized("scaffold")
    run.settings = replace(run.settings, participation=1.0, batch_size=4)
    state, sizes = worlds.play("scaffold", run, last=1), run.federation.sizes("train")
    steps = steps_per_epoch(sizes, run.settings.batch_size, join_single=True)
    cohort = run.cohort(0)
    assert (steps != steps_per_epoch(sizes, run.settings.batch_size, join_single=False))[cohort].any()
    for part in run.local_sgd(cohort, run.init, t=0):
        for position, client in enumerate(part.clients):
            taken = steps[client] * run.settings.lr_at(0)
            met = {n: (run.init[n] - part.params[n][position]) / taken for n in run.engine.parameters}
            worlds.close(parameters.pick(state["controls"][[client]], 0), met, atol=1e-5)


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"clip_gradients": 1.0}])
def test_scaffold_refuses_adam_and_gradient_clipping(settings):
    with pytest.raises(UsageError, match="plain steps of SGD"):
        worlds.play("scaffold", worlds.run("scaffold", **settings))


def test_first_round_of_scaffold_equals_fedavg():
    """Control variates of zero correct nothing."""
    runs = [worlds.run(name) for name in ("fedavg", "scaffold")]
    expected, actual = (worlds.play(*args, last=1) for args in zip(("fedavg", "scaffold"), runs, strict=True))
    worlds.close(actual["global"], expected["global"])


def test_steps_per_epoch_counts_batches_with_and_without_joining():
    sizes = np.asarray([0, 1, 3, 4, 5, 8, 9])
    assert steps_per_epoch(sizes, 4, join_single=False).tolist() == [0, 1, 1, 1, 2, 2, 3]
    assert steps_per_epoch(sizes, 4, join_single=True).tolist() == [0, 1, 1, 1, 1, 2, 2]


def test_run_says_that_momentum_has_no_effect_when_it_is_set(pfl, small, tmp_path):
    line = ("personalize", "scaffold", small.p, "-o", tmp_path / "s", "--model", "logistic", "--rounds", 1)
    assert "--momentum 0.9 has no effect on scaffold\n" in pfl(*line, "--momentum", 0.9).err
    assert "no effect" not in pfl(*line, "-f").err
