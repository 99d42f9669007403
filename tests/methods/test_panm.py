"""PANM: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import client_loss, draw_ids, mean_with, train_clients, unpack_graph
from pflcli.core import parameters
from pflcli.evaluation.metrics import client_relations
from pflcli.methods import panm


def flatten_difference(model, origin):
    return torch.cat([(model[name] - origin[name]).flatten() for name in model]).double()


def cosine_similarity(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def compute_similarities(run, metric, models, before, i, contacts):
    """The poster's Eq. 1 to 4 for client i, by name of the client asked."""
    data, init = run.federation, run.init
    if metric == "loss":
        return {j: 1 / (client_loss(models[j], data, i) + 1e-8) for j in contacts}
    vectors = [
        {c: flatten_difference(models[c], origin(c)) for c in (i, *contacts)} for origin in (before.get, lambda c: init)
    ]
    if metric == "grad-centred":
        for rows in vectors:
            middle = sum(rows.values()) / len(rows)
            rows.update({c: value - middle for c, value in rows.items()})
    first, second = vectors
    alpha = run.cfg.alpha
    return {
        j: alpha * cosine_similarity(first[i], first[j]) + (1 - alpha) * cosine_similarity(second[i], second[j])
        for j in contacts
    }


@pytest.mark.parametrize("metric", ["loss", "grad", "grad-centred"])
@pytest.mark.parametrize("data", [worlds.federation, worlds.quantities], ids=["classes", "quantities"])
def test_panm_first_rounds_match_hand_computed_neighbours(metric, data):
    """Two rounds of Eq. 5: the k best of those asked and those had before."""
    options = {"metric": metric, "k": 2, "l": 2, "t1": 2, "alpha": 0.3}
    run = worlds.run("panm", participation=1.0, epochs=2, options=options, data=data())
    state = worlds.play("panm", run, last=2)
    own, bags, contacts = dict.fromkeys(worlds.ABLE, run.init), {i: [] for i in worlds.ABLE}, 0
    for t in range(2):
        before, models = own, train_clients(run, own, worlds.ABLE, t, epochs=2)
        own = {}
        for i in worlds.ABLE:
            far = [c for c in worlds.ABLE if c != i and c not in bags[i]]
            candidates = [*bags[i], *draw_ids(run, ("asked", t, i), far, 2)]
            s = compute_similarities(run, metric, models, before, i, candidates)
            bags[i] = sorted(sorted(candidates, key=s.get)[-2:])
            own[i] = mean_with(run, models, i, bags[i])
            contacts += len(candidates)
        assert [np.flatnonzero(row).tolist() for row in unpack_graph(run, state)[t][worlds.ABLE]] == [
            bags[i] for i in worlds.ABLE
        ]
    for i in worlds.ABLE:
        worlds.close(parameters.pick(state["model"][[i]], 0), own[i], atol=1e-5)
    assert run.traffic["peer"] == contacts * parameters.size(run.init) * (1 if metric == "loss" else 2)


def play_matching_round(run, state, bags, t=5):
    """One round of matching from given neighbours; the trained models of all."""
    state["bag"] = torch.zeros_like(state["bag"])
    for i, bag in bags.items():
        state["bag"][i, bag] = True
    return panm.train_round(run, state, t)


def test_panm_matching_keeps_neighbours_that_it_did_not_ask():
    """Eq. 10, B - S + H: an implementation is known whose EM's answer replaces the neighbours."""
    run = worlds.run("panm", participation=1.0, data=worlds.clustered(2, 6), options={"t1": 1, "l": 3, "k": 2})
    state = worlds.play("panm", run, last=1)
    bags = {i: [c for c in range(12) if c != i and c % 2 == i % 2] for i in range(12)}
    actual = play_matching_round(run, state, bags)["bag"].numpy()
    for i in range(12):
        near = draw_ids(run, ("asked", 5, i), bags[i], 3)
        unasked = set(bags[i]) - set(near)
        assert len(unasked) == 2
        assert unasked <= set(np.flatnonzero(actual[i]).tolist())


def test_panm_matching_drops_wrong_neighbours_and_finds_the_right_ones():
    """Neighbours are half wrong; those that EM rejects leave, and those of its cluster among the others come."""
    run = worlds.run(
        "panm", participation=1.0, epochs=5, data=worlds.clustered(2, 6), options={"t1": 1, "l": 20, "k": 2}
    )
    state = worlds.play("panm", run, last=2)
    bags = {i: [(i + 2) % 12, (i + 4) % 12, (i + 1) % 12] for i in range(12)}
    actual = play_matching_round(run, state, bags)["bag"].numpy()
    truth = client_relations.share_cluster(run.federation.cluster)
    assert (actual == truth).mean() > 0.95


def test_panm_between_matchings_keeps_neighbours_and_receives_k_models():
    run = worlds.run("panm", rounds=4, participation=1.0, options={"t1": 1, "tau": 3, "k": 2, "metric": "grad"})
    state = worlds.play("panm", run, last=2)
    before, sent_bytes = state["bag"].clone(), run.traffic["peer"]
    state = panm.train_round(run, state, 2)
    assert torch.equal(before, state["bag"])
    chosen = sum(min(2, int(n)) for n in before.sum(dim=1))
    assert run.traffic["peer"] - sent_bytes == chosen * parameters.size(run.init)
    panm.train_round(run, state, 4)
    assert run.traffic["peer"] - sent_bytes > 2 * chosen * parameters.size(
        run.init
    )  # it matches again, with updates beside models


def test_panm_averages_with_k_or_with_all_neighbours():
    for aggregate in ("neighbours", "bag"):
        run = worlds.run("panm", participation=1.0, options={"t1": 1, "k": 1, "l": 2, "aggregate": aggregate})
        state = worlds.play("panm", run, last=1)
        bags = {i: [c for c in worlds.ABLE if c != i] for i in worlds.ABLE}
        state["bag"][:] = False
        for i, bag in bags.items():
            state["bag"][i, bag] = True
        own = {i: parameters.pick(state["model"][[i]], 0) for i in worlds.ABLE}
        models = train_clients(run, own, worlds.ABLE, 5)
        after = panm.train_round(run, state, 5)
        for i in worlds.ABLE:
            bag = np.flatnonzero(after["bag"][i].numpy()).tolist()
            chosen = draw_ids(run, ("neighbours", 5, i), bag, 1) if aggregate == "neighbours" else bag
            worlds.close(parameters.pick(after["model"][[i]], 0), mean_with(run, models, i, chosen), atol=1e-5)


def test_panm_keeps_neighbours_when_everybody_is_a_neighbour():
    """No others are left to ask: there is no EM, and neighbours stay."""
    run = worlds.run("panm", participation=1.0, options={"t1": 1, "k": 2, "l": 3})
    state = worlds.play("panm", run, last=1)
    bags = {i: [c for c in worlds.ABLE if c != i] for i in worlds.ABLE}
    after = play_matching_round(run, state, bags)
    assert all(np.flatnonzero(after["bag"][i].numpy()).tolist() == bags[i] for i in worlds.ABLE)


@pytest.mark.parametrize("isolated", [True, False])
def test_panm_matching_keeps_the_most_similar_client_unless_isolation_is_allowed(monkeypatch, isolated):
    monkeypatch.setattr(panm.mixture, "match_neighbours", lambda y, near, as_printed: np.zeros(len(y), bool))
    options = {"t1": 1, "k": 2, "l": 9, "allow_isolated": isolated}
    run = worlds.run("panm", participation=1.0, options=options)
    state = worlds.play("panm", run, last=1)
    own = {i: parameters.pick(state["model"][[i]], 0) for i in worlds.ABLE}
    models = train_clients(run, own, worlds.ABLE, 5)
    after = play_matching_round(run, state, {i: [worlds.ABLE[place - 1]] for place, i in enumerate(worlds.ABLE)})[
        "bag"
    ].numpy()
    for i in worlds.ABLE:
        nearest = min((c for c in worlds.ABLE if c != i), key=lambda c: client_loss(models[c], run.federation, i))
        assert np.flatnonzero(after[i]).tolist() == ([] if isolated else [nearest])


def test_panm_asks_only_trained_clients_and_uses_their_last_models():
    run = worlds.run("panm", participation=0.34, rounds=4, options={"k": 2, "t1": 4})
    state, trained_clients, models = worlds.play("panm", run, last=0), set(), {}
    for t in range(4):
        cohort = run.cohort(t).tolist()
        trained_clients |= set(cohort)
        own = {i: parameters.pick(state["model"][[i]], 0) for i in cohort}
        models |= train_clients(run, own, cohort, t)
        state = panm.train_round(run, state, t)
        for i in cohort:
            bag = np.flatnonzero(state["bag"][i].numpy()).tolist()
            assert set(bag) <= trained_clients - {i}
            worlds.close(parameters.pick(state["model"][[i]], 0), mean_with(run, models, i, bag), atol=1e-5)
    assert len(trained_clients) > 2


def test_panm_client_that_never_took_part_trains_locally():
    run = worlds.run("panm", rounds=1, participation=0.34, options={"newcomer_epochs": 2})
    state = worlds.play("panm", run)
    (newcomer, *_) = [c for c in (0, 3, 4, 6) if c not in run.cohort(0)]
    model = worlds.steps(run.init, run.federation, newcomer, ("sgd", "newcomer"), epochs=2)
    expected = worlds.probabilities(model, run.federation, newcomer)
    actual = worlds.answers("panm", run, state, np.asarray([newcomer]))["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def measure_neighbours_by_round(options, **settings):
    run = worlds.run(
        "panm",
        data=worlds.clustered(),
        options=options,
        **{"rounds": 16, "participation": 1.0, "epochs": 3, "batch_size": 10, **settings},
    )
    actual = unpack_graph(run, worlds.play("panm", run))
    return [client_relations.precision_recall(neighbours, run.federation.cluster) for neighbours in actual]


@pytest.mark.parametrize("sim", ["inverse", "negative", "negative-log"])
def test_panm_recovers_the_clusters_by_loss(sim):
    precision, recall = measure_neighbours_by_round({"metric": "loss", "sim": sim})[-1]
    assert precision > 0.95
    assert recall > 0.85


@pytest.mark.parametrize("metric", ["grad", "grad-centred"])
def test_panm_recovers_the_clusters_by_gradients(metric):
    precision, recall = measure_neighbours_by_round({"metric": metric})[-1]
    assert precision > 0.95
    assert recall > 0.85


def test_panm_with_the_start_of_the_poster_selects_the_wrong_cluster():
    """The first matching turns neighbours that are nearly all right into ones that are nearly all wrong."""
    actual = measure_neighbours_by_round({"em": "poster", "t1": 4})
    assert actual[3][0] > 0.9
    assert actual[4][0] < 0.2
    assert measure_neighbours_by_round({"t1": 4})[4][0] > 0.9


def test_panm_default_sizes_depend_on_clients_and_rounds():
    run = worlds.run("panm", rounds=24)
    assert panm._sizes(run) == (3, 5, 6)
    assert panm._sizes(worlds.run("panm", rounds=100))[2] == 10
    assert panm._sizes(worlds.run("panm", rounds=1))[2] == 1
    many = worlds.run("panm", data=worlds.clustered(2, 20, samples=2), options={"k": 7})
    assert panm._sizes(many)[:2] == (7, 10)
