"""kNN-peers: votes and attention worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

import pflcli
import worlds
from by_hand import CLIENT
from pflcli.methods import knn_peers


def unit_samples(run, client, split="train"):
    part = run.embeddings[split].take(np.asarray([client]))
    z = part.z.astype(np.float64)
    return z / np.linalg.norm(z, axis=1, keepdims=True), part.y, part.logits.astype(np.float64)


def find_intervals(run, y):
    """The classes of labels, or the intervals of numbers: octiles of a normal distribution, or multiples of a mean."""
    if run.task.kind == "quantity":
        return np.floor(8 * stats.norm(run.task.mean, run.task.deviation).cdf(y)).astype(int)
    if run.task.kind == "count":
        return np.asarray([sum(value / run.task.mean > bound for bound in (0, 0.25, 0.5, 1, 1.5, 2, 4)) for value in y])
    return y


def class_mean_table(run, clients):
    """Means and numbers of the classes that each client has, and the pooled variance within classes."""
    table, squares, freedom = {}, 0.0, 0
    for client in clients:
        z, y, _ = unit_samples(run, client)
        own = find_intervals(run, y)
        for c in np.unique(own):
            table[client, int(c)] = z[own == c].mean(axis=0), int((own == c).sum()), y[own == c].mean()
            squares += ((z[own == c] - z[own == c].mean(axis=0)) ** 2).sum()
            freedom += int((own == c).sum()) - 1
    return table, squares / freedom


def vote_by_hand(run, client, k, sigma, attention, kappa):
    """The votes on the client's test samples, one by one."""
    table, variance = class_mean_table(run, worlds.ABLE)
    classes = worlds.CLASSES if run.task.kind == "classes" else 8
    found = [find_intervals(run, unit_samples(run, c)[1]) for c in [client, *worlds.ABLE]]
    common = np.bincount(np.concatenate(found[1:]), minlength=classes) / len(np.concatenate(found[1:]))
    own = (np.bincount(found[0], minlength=classes) + kappa * common) / (len(found[0]) + kappa)
    z, y, _ = unit_samples(run, client)
    keys = [(vector, label, 1.0) for vector, label in zip(z, y, strict=True)]
    for peer in worlds.ABLE:
        both = [c for c in range(classes) if (client, c) in table and (peer, c) in table]
        if peer == client or not both:
            continue
        statistic = 0.0
        for c in both:
            (mean, n, _), (other, count, _) = table[client, c], table[peer, c]
            statistic += n * count / (n + count) * ((mean - other) ** 2).sum() / variance
        trust = np.exp(-attention * max(0.0, statistic - len(both)))
        for c in range(classes):
            if (peer, c) in table:
                mean, count, label = table[peer, c]
                keys.append((mean, label, trust * count * own[c] / common[c]))
    votes = []
    for x in unit_samples(run, client, "test")[0]:
        weights = sorted(((w * np.exp(-np.linalg.norm(x - v) / sigma), c) for v, c, w in keys), reverse=True)[:k]
        w, labels = np.transpose(weights)
        if run.task.kind == "classes":
            votes.append(np.bincount(labels.astype(int), w, minlength=worlds.CLASSES) / w.sum())
        else:
            votes.append([(w * labels).sum() / w.sum()])
    return np.asarray(votes)


@pytest.mark.parametrize("data", [worlds.federation, worlds.quantities, worlds.counts], ids=lambda make: make.__name__)
@pytest.mark.parametrize("k", [3, 100])
def test_knn_peers_matches_hand_computed_probabilities(k, data):
    options = {"k": k, "weight": 0.4, "sigma": 0.3, "attention": 0.2, "kappa": 4.0}
    run = worlds.run("knn-peers", options=options, data=data())
    state = worlds.play("knn-peers", run)
    votes, outputs = vote_by_hand(run, CLIENT, k, 0.3, 0.2, 4.0), unit_samples(run, CLIENT, "test")[2]
    expected = 0.4 * votes + 0.6 * run.task.predict(torch.from_numpy(outputs))
    actual = worlds.answers("knn-peers", run, state, np.asarray([CLIENT]))["test"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["quantity", "count"])
def test_clients_with_few_samples_gain_by_peers_that_depend_on_features_alike(kind):
    draw, client = np.random.default_rng(0), np.repeat(np.arange(16), 12)
    x = draw.normal(size=(len(client), 3)).astype(np.float32)
    line = (2 * (client % 2) - 1) * x[:, 0]
    y = 50 + 20 * line + draw.normal(size=len(x)) if kind == "quantity" else draw.poisson(np.exp(1 + line))
    federation = pflcli.Federation.from_arrays(x, y, client, task=kind)
    how = {"model": "mlp", "rounds": 2, "participation": 1.0, "batch_size": 16, "quiet": True}
    options = {"weight": 1.0, "sigma": 0.3}
    score = {
        name: pflcli.simulate(method, federation, options=options | extra, **how).score()
        for name, method, extra in (
            ("peers", "knn-peers", {}),
            ("all alike", "knn-peers", {"attention": 0.0}),
            ("own", "knn-per-extended", {"distance": "cosine"}),
        )
    }
    assert score["peers"] > score["all alike"] + 0.1
    assert score["peers"] > score["own"] + 0.05 or kind == "count"  # means of few counts differ by chance


def test_clients_send_class_means_once_and_download_those_of_all():
    run = worlds.run("knn-peers")
    state = worlds.play("knn-peers", run)
    table, variance = class_mean_table(run, worlds.ABLE)
    dimension, clients = run.embeddings["train"].z.shape[1], len(worlds.ABLE)
    counts = clients * worlds.CLASSES
    down = clients * 4 * (len(table) * dimension + counts + clients + 1)
    assert run.traffic == {"up": 4 * (len(table) * dimension + counts + clients), "down": down, "peer": 0}
    for row, (mean, *_) in zip(state["shared"]["means"].numpy(), table.values(), strict=True):
        np.testing.assert_allclose(row, mean, atol=1e-6)
    assert state["shared"]["variance"].item() == pytest.approx(variance, rel=1e-4)


def test_attention_prefers_clients_that_give_classes_the_same_names():
    run = worlds.run("knn-peers", data=worlds.clustered(groups=3, members=4))
    state = worlds.play("knn-peers", run)
    shared = {name: value.numpy() for name, value in state["shared"].items()}
    z, y, _ = unit_samples(run, 0)
    logarithm = knn_peers._attend(z, y, shared["means"], shared["counts"], float(shared["variance"]), 1.0)
    same_group = np.arange(12) % 3 == 0
    assert logarithm[same_group].min() > logarithm[~same_group].max() + 10


@pytest.mark.parametrize("samples", [4, 8])
def test_clients_with_few_samples_gain_by_the_means_of_their_group(samples):
    run = worlds.run("knn-peers", data=worlds.clustered(groups=3, members=6, samples=samples), options={"weight": 1.0})
    state, y = worlds.play("knn-peers", run), run.embeddings["test"].y
    alone = worlds.run("knn-per-extended", data=run.federation, options={"weight": 1.0, "distance": "cosine"})
    together, own = (
        (worlds.answers(method, each, played)["test"].argmax(axis=1) == y).mean()
        for method, each, played in (("knn-peers", run, state), ("knn-per-extended", alone, {}))
    )
    assert together > own + 0.05


def test_client_that_joins_later_asks_peers_and_is_not_asked():
    from pflcli.plugins.checks.laws.federations import add_new_clients

    base = worlds.run("knn-peers")
    run = worlds.run("knn-peers", data=add_new_clients(worlds.federation(), ((6, 2, 3),)), options={"weight": 1.0})
    state = worlds.play("knn-peers", run)
    assert worlds.same(state, worlds.play("knn-peers", base))
    joined = np.asarray([len(worlds.SIZES)])
    asked = worlds.answers("knn-peers", run, state, joined)["test"]
    state["shared"]["means"] += 1
    assert not np.allclose(asked, worlds.answers("knn-peers", run, state, joined)["test"])


def test_knn_peers_without_own_or_common_samples_equals_the_global_model():
    run = worlds.run("knn-peers", options={"weight": 1.0}, data=worlds.federation(client_sizes=((0, 0, 4), (6, 2, 1))))
    actual = worlds.answers("knn-peers", run, worlds.play("knn-peers", run), np.asarray([0]))["test"]
    expected = special.softmax(unit_samples(run, 0, "test")[2], axis=1)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_all_clients_are_equally_similar_when_no_class_has_two_samples():
    means, counts = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.int64)
    logarithm = knn_peers._attend(np.ones((1, 3), np.float32), np.asarray([1]), means, counts, 0.0, 1.0)
    assert logarithm.tolist() == [-np.inf, 0.0, -np.inf]
