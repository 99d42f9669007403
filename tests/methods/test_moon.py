"""MOON: rounds worked out by hand, neutral settings, and what the fixed models do not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import representation, sample_counts
from pflcli.core import parameters


def contrast(data, start, last, mu, tau):
    """The model-contrastive loss on rows, by line 17 of Algorithm 1, to which the cross-entropy is added."""

    def loss(w, rows):
        x = data.inputs(rows)
        z, near, far = (representation(model, x) for model in (w, start, last))
        near, far = ((z * other).sum(dim=1) / (z.norm(dim=1) * other.norm(dim=1)) for other in (near, far))
        positive, negative = torch.exp(near / tau), torch.exp(far / tau)
        return -mu * torch.log(positive / (positive + negative)).mean()

    return loss


def test_moon_rounds_match_hand_computed_models(mode, monkeypatch):
    run = worlds.run("moon", mode=mode, epochs=2, rounds=4, options={"mu": 5.0, "temperature": 0.3})
    two_clients = 6 * parameters.size(run.init)
    monkeypatch.setattr("pflcli.core.engine.engine._CHUNK_BYTES", {"cpu": two_clients})
    state, data = worlds.play("moon", run), run.federation
    shared, last, times = run.init, dict.fromkeys(range(7), run.init), np.zeros(7)
    for t in range(4):
        cohort = run.cohort(t).tolist()
        for c in cohort:
            also = contrast(data, shared, last[c], 5.0, 0.3)
            last[c] = worlds.steps(shared, data, c, ("sgd", t), epochs=2, also=also)
        shared = worlds.mean([last[c] for c in cohort], sample_counts(run, cohort))
        times[cohort] += 1
    assert (times > 1).any()  # a client met its own last model again
    assert (times[worlds.ABLE] < 4).all()
    worlds.close(state["global"], shared, atol=1e-5)
    for c, expected in last.items():
        worlds.close(parameters.pick(state["previous"][[c]], 0), expected, atol=1e-5)
    drawn = int(times.sum())
    assert run.traffic == {"up": drawn * parameters.size(shared), "down": drawn * parameters.size(shared), "peer": 0}
    plain = worlds.play("fedavg", worlds.run("fedavg", epochs=2, rounds=4))["global"]
    assert (plain["body.3.weight"] - shared["body.3.weight"]).abs().max() > 1e-3  # the loss matters


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_moon_with_mu_0_has_the_bytes_of_fedavg(mode):
    states = [
        worlds.play(name, worlds.run(name, mode=mode, options=options))["global"]
        for name, options in (("fedavg", {}), ("moon", {"mu": 0.0}))
    ]
    assert worlds.same(*states)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_first_round_of_moon_equals_fedavg_also_in_its_running_statistics(mode):
    """Both fixed models are the common initial one, whose forward passes must not change any statistics."""
    runs = [worlds.normalized(name, mode)[0] for name in ("fedavg", "moon")]
    expected, actual = (worlds.play(*args, last=1) for args in zip(("fedavg", "moon"), runs, strict=True))
    worlds.close(actual["global"], expected["global"])
    before = runs[1].init["body.2.running_mean"]
    assert not torch.equal(actual["global"]["body.2.running_mean"], before)
