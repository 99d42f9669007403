"""Clustered FL: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import client_loss, mean_members
from pflcli.core import parameters
from pflcli.core.engine import model_algebra
from pflcli.methods import clustered_fl


@pytest.mark.parametrize("options", [{"eps1": 0.0}, {"warmup": 9}, {"gamma": 1.0, "warmup": 0, "eps1": 9.0}])
def test_clustered_fl_equals_fedavg_when_it_never_splits(options):
    runs = [worlds.run("fedavg"), worlds.run("clustered-fl", options={"warmup": 0, **options})]
    expected, actual = (worlds.play(name, run) for name, run in zip(("fedavg", "clustered-fl"), runs, strict=True))
    assert worlds.same(expected["global"], parameters.pick(actual["models"], 0))
    assert len(actual["models"]["head.weight"]) == 1
    assert runs[0].traffic == runs[1].traffic


def split_cluster(products, members=worlds.ABLE, largest=0.0, t=0, **options):
    """Which of the clients a cluster with updates of these products lets go."""
    run = worlds.run("clustered-fl", options={"warmup": 0, **options})
    values, axes = np.linalg.eigh(np.asarray(products, dtype=float))
    update = run.table({name: torch.zeros_like(run.init[name]) for name in run.engine.parameters})
    stacked = {name: value.repeat(len(members), *[1] * value.ndim) for name, value in update.default.items()}
    stacked["head.weight"].flatten(1)[:, : len(members)] = torch.from_numpy(axes * np.sqrt(np.maximum(values, 0)))
    update[members] = stacked
    far, mean = clustered_fl._split(run, np.asarray(members), update, largest, t)
    return far.tolist(), mean


def test_clustered_fl_splits_at_hand_computed_thresholds():
    """Clients 0, 2 and 3 have 12, 7 and 6 samples; two pull one way, the third the other."""
    updates = np.asarray([[1.0, 0.1], [1.0, -0.1], [-3.0, 0.0]])
    products, members = updates @ updates.T, [0, 2, 3]
    mean, longest = float(np.linalg.norm(np.asarray([12, 7, 6]) @ updates / 25)), 3.0
    split = ([False, False, True], pytest.approx(mean, rel=1e-5))
    unsplit = ([False] * 3, pytest.approx(mean, rel=1e-5))
    assert split_cluster(products, members) == split
    assert split_cluster(products, members, eps1=mean / longest * 1.01) == split
    assert split_cluster(products, members, eps1=mean / longest * 0.99) == unsplit
    assert split_cluster(products, members, largest=2.0, eps2=1.49) == split
    assert split_cluster(products, members, largest=2.0, eps2=1.51) == unsplit
    absolute = {"thresholds": "absolute", "largest": 2.0}
    assert split_cluster(products, members, eps1=mean * 1.01, eps2=2.99, **absolute) == split
    assert split_cluster(products, members, eps1=mean * 0.99, eps2=2.99, **absolute) == unsplit
    assert split_cluster(products, members, eps1=mean * 1.01, eps2=3.01, **absolute) == unsplit
    assert split_cluster(products, members, **absolute) == split  # the authors' 0.4 and 1.6
    assert split_cluster(products, members, warmup=3, t=2) == unsplit
    assert split_cluster(products, members, warmup=3, t=3) == split
    across = -1 / np.sqrt(1.01)
    assert split_cluster(products, members, gamma=np.sqrt((1 - across) / 2) * 0.999) == split
    assert split_cluster(products, members, gamma=min(np.sqrt((1 - across) / 2) * 1.001, 1.0)) == unsplit
    within = 0.99 / 1.01
    assert split_cluster(products, members, gap=(within - across) * 0.999) == split
    assert split_cluster(products, members, gap=min((within - across) * 1.001, 2.0)) == unsplit
    assert split_cluster(products[:2, :2], members[:2], eps1=9.0)[0] == [False] * 2  # two clients stay together


def test_clustered_fl_does_not_split_random_updates_unless_gap_is_0():
    noise = np.random.default_rng(0).normal(size=(6, 400))
    assert not any(split_cluster(noise @ noise.T, eps1=9.0)[0])
    assert any(split_cluster(noise @ noise.T, eps1=9.0, gap=0.0)[0])


def test_clustered_fl_splits_by_client_id_and_not_by_position(monkeypatch):
    """An implementation is known that takes positions within a cluster for the names of clients."""
    data = worlds.clustered(2, 4)
    far = iter([[0, 1, 0, 0, 1, 0, 1, 1], [0, 1, 1, 0], [0, 0, 1, 1]])

    def split(run, members, update, largest, t):
        leaving = np.asarray(next(far), dtype=bool) if len(members) >= 4 else np.zeros(len(members), bool)
        return leaving, 0.0

    monkeypatch.setattr(clustered_fl, "_split", split)
    run = worlds.run("clustered-fl", data=data, rounds=2, participation=1.0)
    state = worlds.play("clustered-fl", run, last=1)
    assert state["cluster"].tolist() == [0, 1, 0, 0, 1, 0, 1, 1]
    halves = [parameters.pick(state["models"], c) for c in (0, 1)]
    assert worlds.same(*halves)  # both go on from the same model
    state = clustered_fl.train_round(run, state, 1)
    # Cluster 0 is 0, 2, 3, 5, of which 2 and 3 leave; cluster 1 is 1, 4, 6, 7, of which 6 and 7 leave.
    assert state["cluster"].tolist() == [0, 1, 2, 2, 1, 0, 3, 3]
    for c, members in ((0, [0, 2, 3, 5]), (1, [1, 4, 6, 7])):
        uploads = {i: worlds.steps(halves[c], data, i, ("sgd", 1)) for i in members}
        expected = mean_members(run, uploads, members)
        worlds.close(parameters.pick(state["models"], c), expected, atol=1e-5)
        worlds.close(parameters.pick(state["models"], 2 + c), expected, atol=1e-5)


def test_clustered_fl_splits_by_the_last_known_update_of_each_client(monkeypatch):
    judged = []

    def split(run, members, update, largest, t):
        judged.append((members.tolist(), model_algebra.gram_matrix(update, members, run.engine.parameters, 99)))
        return np.zeros(len(members), bool), 0.0

    monkeypatch.setattr(clustered_fl, "_split", split)
    run = worlds.run("clustered-fl", participation=0.34, rounds=4)
    worlds.play("clustered-fl", run)
    model, last = run.init, {}
    for t in range(4):
        cohort = run.cohort(t).tolist()
        uploads = {i: worlds.steps(model, run.federation, i, ("sgd", t)) for i in cohort}
        last |= {i: torch.cat([(uploads[i][n] - model[n]).flatten() for n in model]).double() for i in cohort}
        model = mean_members(run, uploads, cohort)
        members, products = judged[t]
        assert members == sorted(last)
        expected = [[float(last[a] @ last[b]) for b in members] for a in members]
        np.testing.assert_allclose(products, expected, rtol=1e-3, atol=1e-5)


def test_clustered_fl_records_the_largest_norm_of_a_mean_update():
    run = worlds.run("clustered-fl", participation=1.0, options={"eps1": 0.0})
    before, norms, state = run.init, [], None
    for t in range(3):
        state = worlds.play("clustered-fl", run, t, t + 1, state)
        model = parameters.pick(state["models"], 0)
        norms.append(float(torch.cat([(model[name] - before[name]).flatten() for name in model]).norm()))
        before = model
        assert float(state["largest"]) == pytest.approx(max(norms), rel=1e-4)


def test_clustered_fl_gives_a_late_client_the_cluster_model_of_lowest_loss():
    run = worlds.run("clustered-fl", participation=0.34, rounds=9)
    state = worlds.play("clustered-fl", run, last=1)
    state["models"] = run.initial_models(3)
    (t, new), size = next((t, i) for t in range(1, 9) for i in run.cohort(t) if i not in run.cohort(0)), run.init
    count, before = len(run.cohort(t)), run.traffic["down"]
    arriving = [i for i in run.cohort(t) if state["cluster"][i] < 0]
    after = clustered_fl.train_round(run, state, t)
    models = [parameters.pick(run.initial_models(3), c) for c in range(3)]
    assert after["cluster"][new] == min(range(3), key=lambda c: client_loss(models[c], run.federation, new))
    assert run.traffic["down"] - before == (count + 2 * len(arriving)) * parameters.size(size)
    stranger = next(i for i in (0, 3, 4, 6) if after["cluster"][i] < 0)
    choice = min(range(3), key=lambda c: client_loss(parameters.pick(after["models"], c), run.federation, stranger))
    actual = worlds.answers("clustered-fl", run, after, np.asarray([stranger]))["test"]
    expected = worlds.probabilities(parameters.pick(after["models"], choice), run.federation, stranger)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_clustered_fl_recovers_three_known_clusters(linkage):
    data, options = worlds.clustered(), {"warmup": 5, "linkage": linkage, "gap": 0.4}
    run = worlds.run("clustered-fl", data=data, options=options, rounds=14, participation=1.0, epochs=3, batch_size=10)
    actual = worlds.play("clustered-fl", run)["cluster"].numpy()
    assert len({(int(a), int(b)) for a, b in zip(actual, data.cluster, strict=True)}) == len(set(actual)) == 3
