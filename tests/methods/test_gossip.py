"""Gossip: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from by_hand import draw_ids, mean_with, train_clients, unpack_graph
from pflcli.core import parameters


def test_gossip_with_all_clients_as_partners_equals_fedavg():
    run = worlds.run("gossip", participation=1.0, options={"k": 6})
    state, shared = worlds.play("gossip", run), worlds.run("fedavg", participation=1.0)
    expected = worlds.play("fedavg", shared)["global"]
    for i in worlds.ABLE:
        worlds.close(parameters.pick(state["model"][[i]], 0), expected)
    # Whoever has no samples is not asked; each of six receives five models.
    assert run.traffic["peer"] == 3 * 6 * 5 * parameters.size(run.init)


@pytest.mark.parametrize("uniform", [True, False])
def test_gossip_round_matches_hand_computed_models(uniform):
    run = worlds.run("gossip", participation=1.0, options={"k": 2, "uniform": uniform})
    state = worlds.play("gossip", run, last=1)
    models = train_clients(run, dict.fromkeys(worlds.ABLE, run.init), worlds.ABLE, 0)
    for i in worlds.ABLE:
        partners = draw_ids(run, ("asked", 0, i), [c for c in worlds.ABLE if c != i], 2)
        plain = worlds.mean([models[c] for c in (i, *partners)], [1] * 3)
        worlds.close(
            parameters.pick(state["model"][[i]], 0),
            plain if uniform else mean_with(run, models, i, partners),
            atol=1e-5,
        )
        assert np.flatnonzero(unpack_graph(run, state)[0][i]).tolist() == partners


def test_gossip_draws_partners_uniformly():
    run = worlds.run("gossip", participation=1.0, rounds=1, options={"k": 2})
    met = np.zeros((7, 7))
    for t in range(300):
        for i in worlds.ABLE:
            met[i, draw_ids(run, ("asked", t, i), [c for c in worlds.ABLE if c != i], 2)] += 1
    off = ~np.eye(7, dtype=bool)[worlds.ABLE][:, worlds.ABLE]
    np.testing.assert_allclose(met[worlds.ABLE][:, worlds.ABLE][off] / 300, 2 / 5, atol=0.12)
