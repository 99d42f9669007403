"""Each method worked out by hand, or against an independent few lines, and its neutral settings."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import worlds
from pflcli import parameters, rng
from pflcli.errors import UsageError
from pflcli.knn.indexes import flat_indexes
from pflcli.knn.stores import Neighbours, Stores
from pflcli.knn.voting import vote_by_distance
from pflcli.methods import knn_per
from pflcli.settings import Settings, changed


def net_of(params):
    body = nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    model = nn.Module()
    model.body, model.head = body, nn.Linear(200, worlds.CLASSES)
    model.load_state_dict(params)
    return model


def train(params, x, y, seed, key, client, epochs, batch, lr):
    """A client's local training with torch.optim.SGD."""
    model = net_of(params)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    draw = rng.generator(seed, *key, client)
    for _ in range(epochs):
        for part in np.split(order := draw.permutation(len(y)), range(batch, len(order), batch)):
            optimizer.zero_grad()
            functional.cross_entropy(model.head(model.body(x[part])), y[part]).backward()
            optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def test_fedavg_round_by_hand():
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


def test_fedavg_of_full_batches_is_centralized_gradient_descent():
    """One epoch of one batch each: the weighted mean of steps is one step on all samples together."""
    run = worlds.run("fedavg", participation=1.0, batch_size=1000, rounds=3)
    after = worlds.play("fedavg", run)["global"]
    data = run.federation
    rows = np.concatenate([data.rows(int(c), "train") for c in run.clients])
    model = net_of(run.init)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model.head(model.body(data.x[rows])), data.y[rows]).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(after[name], value, rtol=1e-4, atol=1e-6)


def test_cohorts_are_uniform_sorted_and_hold_samples():
    run = worlds.run("fedavg", participation=0.5)
    drawn = np.zeros(len(run.clients))
    for t in range(600):
        cohort = run.cohort(t)
        assert len(set(cohort)) == len(cohort) == 3
        assert (np.diff(cohort) > 0).all()
        drawn[cohort] += 1
    assert drawn[5] == 0
    np.testing.assert_allclose(drawn[[0, 1, 2, 3, 4, 6]] / 600, 0.5, atol=0.08)


def test_learning_rate_falls_at_milestones():
    plan = Settings(lr=1.0, milestones=(2, 4), gamma=0.1)
    assert [plan.lr_at(t) for t in range(6)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("refit", [True, False])
def test_local_is_training_alone(refit):
    run = worlds.run("local", options={"epochs": 3}, refit=refit)
    actual = worlds.answers("local", run, {})
    data, expected = run.federation, []
    for client in run.clients:
        rows = worlds.federation().rows(client, *(("train", "validation") if refit else ("train",)))
        params = train(run.init, data.x[rows], data.y[rows], 0, ("sgd", "local"), client, 3, 4, 0.1)
        model = net_of(params)
        with torch.no_grad():
            expected.append(torch.softmax(model.head(model.body(data.x[data.block(client, "test")])), 1))
    np.testing.assert_allclose(actual["test"], torch.cat(expected), atol=1e-5)


def test_local_trains_as_long_as_a_client_of_fedavg():
    run = worlds.run("local", rounds=10, participation=0.5, epochs=2)
    by_default = worlds.answers("local", run, {})["test"]
    run = worlds.run("local", rounds=10, participation=0.5, epochs=2, options={"epochs": 10})
    np.testing.assert_array_equal(by_default, worlds.answers("local", run, {})["test"])


def test_local_takes_as_many_steps_as_a_client_of_fedavg():
    """With the learning rate of the round that a client of FedAvg would be in."""
    settings = {"rounds": 4, "participation": 0.5, "steps": 3, "milestones": "2", "gamma": 0.5}
    run = worlds.run("local", **settings)
    actual = worlds.answers("local", run, {})["test"]
    rates = [0.1] * 3 + [0.05] * 3
    parts = run.local_sgd(run.clients, run.init, t="local", epochs=0, steps=6, lr=lambda step: rates[step])
    expected = run.predictor(run.clients, parts).answer("test")["p"]
    np.testing.assert_array_equal(actual, expected)
    by_steps = worlds.run("local", options={"steps": 6}, **settings)
    np.testing.assert_array_equal(worlds.answers("local", by_steps, {})["test"], expected)


def test_local_by_adam_is_torchs_adam():
    run = worlds.run("local", options={"steps": 7, "optimizer": "adam"}, lr=0.01)
    actual = worlds.answers("local", run, {}, np.asarray([0]))["test"]
    data, net = run.federation, net_of(run.init)
    rows, draw = torch.from_numpy(data.rows(0, "train")), rng.generator(0, "sgd", "local", 0)
    batches = [part for _ in range(3) for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(4)][:7]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for part in batches:
        optimizer.zero_grad()
        functional.cross_entropy(net.head(net.body(data.x[part])), data.y[part]).backward()
        optimizer.step()
    with torch.no_grad():
        expected = torch.softmax(net.head(net.body(data.x[data.block(0, "test")])), 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_steps_of_fine_tuning_stand_for_epochs():
    run = worlds.run("fedavg-plus", options={"steps": 6})
    actual = worlds.answers("fedavg-plus", run, {}, np.asarray([0]))["test"]  # 12 samples in batches of 4
    run = worlds.run("fedavg-plus", options={"epochs": 2})
    np.testing.assert_array_equal(actual, worlds.answers("fedavg-plus", run, {}, np.asarray([0]))["test"])


@pytest.mark.parametrize(
    ("method", "options"),
    [("local", {"epochs": 3, "steps": 6}), ("fedavg-plus", {"epochs": 3, "steps": 6}), ("", {"epochs": 2, "steps": 6})],
)
def test_epochs_and_steps_exclude_each_other(method, options):
    with pytest.raises(UsageError, match=r"how long clients .*; give one"):
        worlds.run(method, options=options) if method else worlds.run("fedavg", **options)


def test_steps_take_the_place_of_epochs_and_the_other_way_round():
    assert changed({"epochs": 5, "lr": 0.1}, {"steps": 100}) == {"lr": 0.1, "steps": 100}
    assert changed({"steps": 100, "epochs": 1}, {"epochs": "3"}) == {"epochs": "3"}
    assert changed({"epochs": 5}, {"steps": "0"}) == {"epochs": 5, "steps": "0"}
    assert changed({"epochs": 5}, {"lr": 1.0}) == {"epochs": 5, "lr": 1.0}


def test_fedavg_plus_starts_from_the_backbone():
    run = worlds.run("fedavg-plus", options={"epochs": 2})
    actual = worlds.answers("fedavg-plus", run, {})["test"]
    data, expected = run.federation, []
    for client in run.clients:
        rows = data.rows(client, "train")
        params = train(run.backbone, data.x[rows], data.y[rows], 0, ("sgd", "fine-tune"), client, 2, 4, 0.1)
        model = net_of(params)
        with torch.no_grad():
            expected.append(torch.softmax(model.head(model.body(data.x[data.block(client, "test")])), 1))
    np.testing.assert_allclose(actual, torch.cat(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "trainable"), [({"upper": 2}, ("body.3.", "head.")), ({"trainable": "head."}, "head.")]
)
def test_fedavg_plus_may_train_upper_layers_alone(options, trainable):
    run = worlds.run("fedavg-plus", options={"epochs": 2, **options})
    actual = worlds.answers("fedavg-plus", run, {}, np.asarray([0]))["test"]
    plan = {"epochs": 2, "trainable": trainable}
    model = worlds.steps(run.backbone, run.federation, 0, ("sgd", "fine-tune"), **plan)
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, 0), atol=1e-6)


def test_fedavg_plus_refuses_a_choice_that_trains_nothing():
    run = worlds.run("fedavg-plus", options={"trainable": "haed."})
    with pytest.raises(UsageError, match="no parameters under"):
        worlds.answers("fedavg-plus", run, {})
    with pytest.raises(UsageError, match="give one"):
        worlds.run("fedavg-plus", options={"trainable": "head.", "upper": 1})


NEUTRAL = {
    "knn-per at weight 0": ("knn-per", {"weight": 0.0}),
    "fedavg-plus of no epochs": ("fedavg-plus", {"epochs": 0}),
    "knn-per-plus at weight 0 of no epochs": ("knn-per-plus", {"weight": 0.0, "epochs": 0}),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_setting_is_fedavg(name):
    method, options = NEUTRAL[name]
    run = worlds.run(method, options=options)
    actual = worlds.answers(method, run, {})["test"]
    expected = worlds.answers("fedavg", run, {"global": run.backbone})["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_an_empty_store_is_fedavg():
    run = worlds.run("knn-per", options={"weight": 1.0})
    lone = run.stores
    count = len(run.clients)
    offsets = np.zeros(count + 1, int)
    empty = np.zeros((0, run.embeddings["test"].z.shape[1]), np.float32)
    run.stores = Stores(*flat_indexes([empty] * count), lone.y[:0], offsets, offsets[1:])
    actual = worlds.answers("knn-per", run, {})["test"]
    expected = worlds.answers("fedavg", run, {"global": run.backbone})["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("kernel", ["euclidean", "scaled-squared"])
def test_knn_per_against_a_few_lines(kernel):
    """p = lambda p_kNN + (1 - lambda) h, neighbours by brute force, exp(-d) taken literally."""
    k, lam = 3, 0.4
    run = worlds.run("knn-per", options={"k": k, "weight": lam, "kernel": kernel, "sigma": 2.0})
    actual = worlds.answers("knn-per", run, {})["test"]
    parts, expected = run.embeddings, []
    for client in run.clients:
        stored = parts["train"].take(np.asarray([client]))
        z, y = stored.z, stored.y
        query = parts["test"].take(np.asarray([client]))
        for x, logits in zip(query.z.astype(float), query.logits.astype(float), strict=True):
            squared = ((z - x) ** 2).sum(axis=1)
            near = np.argsort(squared, kind="stable")[:k]
            d = np.sqrt(squared) / 2 if kernel == "euclidean" else squared / (z.shape[1] * 2)
            knn = np.bincount(y[near], weights=np.exp(-d[near]), minlength=worlds.CLASSES)
            h = np.exp(logits) / np.exp(logits).sum()
            expected.append(lam * knn / knn.sum() + (1 - lam) * h)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_lambda_is_tuned_on_validation_samples_alone():
    run = worlds.run("knn-per", options={"k": 2})
    chosen = knn_per.personalize(run, {}, run.clients).tuned["lambda"]
    test = run.embeddings["test"]
    test.z[:] = 0
    test.logits[:] = 0
    np.testing.assert_array_equal(chosen, knn_per.personalize(run, {}, run.clients).tuned["lambda"])
    assert chosen[[1, 3, 5]].tolist() == [0.5] * 3  # no validation samples: nearest to one half


def tune(knn, model, y, **options):
    from pflcli.knn.embedded import Embedded

    part = Embedded(np.zeros((len(y), 1)), np.log(np.asarray(model)), np.asarray(y), np.asarray([0, len(y)]))
    weight, _ = knn_per._tune(knn_per.Config(**options), np.asarray(knn), np.asarray(model), part, np.ones(len(y)))
    return weight[0]


def test_lambda_by_hand():
    right, wrong, hardly = [0.9, 0.1], [0.1, 0.9], [0.6, 0.4]
    assert tune([right], [right], [0]) == 0.5  # all of the grid is right
    assert tune([hardly], [wrong], [0]) == 0.9  # .6 lam + .1 (1 - lam) > 1/2 from lam = .8 on
    assert tune([wrong], [hardly], [0]) == 0.1  # .1 lam + .6 (1 - lam) > 1/2 up to lam = .2
    assert tune([right, wrong, wrong], [wrong, right, right], [0, 0, 0], grid=(0.0, 1.0)) == 0.0
    for low, high in ((0.1, 0.9), (0.3, 0.7), (0.0, 1.0), (0.45, 0.55)):  # equally near one half: the smaller
        assert tune([right], [right], [0], grid=(low, high)) == low


def test_votes_by_hand():
    neighbours = Neighbours(np.asarray([[1.0, 4.0, 9.0], [4.0, np.inf, np.inf]]), np.asarray([[2, 0, 2], [1, -1, -1]]))
    e = np.exp([-1.0, -2.0, -3.0])
    p = vote_by_distance(neighbours, 3, -np.sqrt(neighbours.distance))
    np.testing.assert_allclose(p[0], [e[1] / e.sum(), 0, (e[0] + e[2]) / e.sum()])
    np.testing.assert_allclose(p[1], [0, 1, 0])


def test_votes_of_far_neighbours_do_not_underflow():
    neighbours = Neighbours(np.asarray([[1e8, 1e8 + 1e4]]), np.asarray([[0, 1]]))
    p = vote_by_distance(neighbours, 2, -neighbours.distance)
    np.testing.assert_allclose(p, [[1, 0]])


def test_votes_without_neighbours_are_zero():
    neighbours = Neighbours(np.full((1, 2), np.inf), np.full((1, 2), -1))
    assert vote_by_distance(neighbours, 2, -neighbours.distance).tolist() == [[0, 0]]
    none = Neighbours(np.zeros((0, 2)), np.zeros((0, 2), int))
    assert vote_by_distance(none, 2, -none.distance).shape == (0, 2)


def test_search_is_exact_and_clamped():
    draw = np.random.default_rng(0)
    sizes = [40, 3, 0, 17]
    z = [draw.normal(size=(n, 6)).astype(np.float32) for n in sizes]
    y = [draw.integers(0, 4, n) for n in sizes]
    stores = Stores(
        *flat_indexes(z),
        np.concatenate(y),
        np.cumsum([0, *sizes]),
        np.asarray([25, 2, 0, 17]),
    )
    queries = draw.normal(size=(8, 6)).astype(np.float32)
    bounds = np.asarray([0, 2, 4, 6, 8])
    neighbours = stores.search(np.arange(4), queries, bounds, 5)
    for client in range(4):
        for row in range(bounds[client], bounds[client + 1]):
            squared = ((z[client][: stores.train[client]] - queries[row]) ** 2).sum(axis=1)
            near = np.argsort(squared)[:5]
            depth = len(near)
            np.testing.assert_allclose(neighbours.distance[row, :depth], squared[near], rtol=1e-4)
            assert neighbours.label[row, :depth].tolist() == y[client][near].tolist()
            assert (neighbours.label[row, depth:] == -1).all()
            assert np.isinf(neighbours.distance[row, depth:]).all()


def nearest(run, neighbours):
    return knn_per._kernel_distance(run.cfg, neighbours, run.embeddings["test"].z.shape[1])[:, 0]


def test_auto_sigma_is_of_the_kernel_that_it_scales():
    """By ``scaled-squared`` it is of d^2 / dimension: the median sample's nearest neighbour has the exponent -1."""
    run = worlds.run("knn-per", options={"sigma": "auto", "kernel": "scaled-squared"})
    part = run.embeddings["validation"]
    neighbours = run.stores.search(run.clients, part.z, part.offsets, 1)
    sigma = knn_per._kernel_scales(run.cfg, nearest(run, neighbours), part.offsets)
    expected = np.median(neighbours.distance[: part.offsets[1], 0]) / part.z.shape[1]
    assert sigma[0] == pytest.approx(expected)
    assert sigma[1] == 1  # no validation samples


def test_auto_sigma_is_the_median_nearest_distance():
    run = worlds.run("knn-per", options={"sigma": "auto"})
    part = run.embeddings["validation"]
    neighbours = run.stores.search(run.clients, part.z, part.offsets, 1)
    sigma = knn_per._kernel_scales(run.cfg, nearest(run, neighbours), part.offsets)
    first = np.sqrt(neighbours.distance[:4, 0])
    assert sigma[0] == pytest.approx(np.median(first))
    assert sigma[1] == 1  # no validation samples
    scaled = copy.deepcopy(neighbours)
    scaled.distance[:] *= 4
    np.testing.assert_allclose(knn_per._kernel_scales(run.cfg, nearest(run, scaled), part.offsets)[0], 2 * sigma[0])
