"""PENS: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from by_hand import client_loss, draw_ids, mean_with, train_clients, unpack_graph
from pflcli.core import parameters
from pflcli.core.errors import UsageError
from pflcli.evaluation.metrics import client_relations


def test_pens_rounds_match_hand_computed_models():
    """Two rounds of asking and counting; then neighbours taken more often than by chance."""
    run = worlds.run("pens", participation=1.0, rounds=4, options={"n": 3, "m": 1, "t1": 2, "partners": 1})
    state = worlds.play("pens", run)
    own, times_asked, times_selected = dict.fromkeys(worlds.ABLE, run.init), np.zeros((7, 7)), np.zeros((7, 7))
    received = 0
    for t in range(4):
        models = train_clients(run, own, worlds.ABLE, t)
        own, before = {}, times_selected * 3 > times_asked
        for i in worlds.ABLE:
            if t < 2 or not before[i].any():
                tried = draw_ids(run, ("asked", t, i), [c for c in worlds.ABLE if c != i], 3)
                chosen = [min(tried, key=lambda c: client_loss(models[c], run.federation, i))]
                times_asked[i, tried] += 1
                times_selected[i, chosen] += 1
                received += 3
            else:
                chosen = draw_ids(run, ("neighbours", t, i), np.flatnonzero(before[i]), 1)
                received += 1
            own[i] = mean_with(run, models, i, chosen)
        np.testing.assert_array_equal(unpack_graph(run, state)[t], times_selected * 3 > times_asked)
    for i in worlds.ABLE:
        worlds.close(parameters.pick(state["model"][[i]], 0), own[i], atol=2e-5)
    assert run.traffic["peer"] == received * parameters.size(run.init)
    assert unpack_graph(run, state)[-1][worlds.ABLE].any(axis=1).all()


def test_pens_has_no_neighbours_when_it_selects_all_clients_asked():
    """Who is always taken is not taken more often than by chance, whatever sums of fractions come to."""
    run = worlds.run("pens", participation=1.0, rounds=12, options={"n": 2, "m": 2, "t1": 12})
    assert not unpack_graph(run, worlds.play("pens", run)).any()


def test_pens_recovers_the_known_clusters():
    run = worlds.run(
        "pens", data=worlds.clustered(), rounds=12, participation=1.0, epochs=3, batch_size=10, options={"n": 6}
    )
    precision, recall = client_relations.precision_recall(
        unpack_graph(run, worlds.play("pens", run))[-1], run.federation.cluster
    )
    assert precision > 0.75
    assert recall > 0.9


def test_pens_refuses_m_above_n():
    with pytest.raises(UsageError, match="m=3 models cannot be taken of the n=2"):
        worlds.run("pens", options={"n": 2, "m": 3})
