"""kNN-Per on quantities and counts: means of neighbours and lambda written out, and stores on disk."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest

from pflcli import Federation, import_data, partition, simulate
from pflcli.core.errors import UnsuitedError
from pflcli.core.knn.stores import Neighbours, leave_out
from pflcli.core.knn.voting import mean_by_distance

HOW = {"model": "mlp", "rounds": 3, "participation": 1.0, "batch_size": 16, "lr": 0.05, "quiet": True}
GRID = np.asarray([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])


def make_clients(kind="quantity"):
    """Return four clients whose labels depend on the features in two ways, all below 0 if they are quantities."""
    draw = np.random.default_rng(0)
    x, client = draw.normal(size=(240, 3)).astype(np.float32), np.repeat(np.arange(4), 60)
    line = x[:, 0] + (client % 2) * 2 * x[:, 1]
    y = 50 * line - 500 if kind == "quantity" else draw.poisson(np.exp(1 + 0.4 * line))
    return Federation.from_arrays(x, y, client, task=kind)


def find_means(result, federation, client, split, k=10):
    """Return the weighted means (n,) of the nearest training labels of a client's samples of a split."""
    embedded = result.run.embeddings
    spans = {name: slice(*embedded[name].offsets[client : client + 2]) for name in ("train", split)}
    queries, stored = embedded[split].z[spans[split]].astype(float), embedded["train"].z[spans["train"]].astype(float)
    distance = np.sqrt(((queries[:, None] - stored[None]) ** 2).sum(axis=2))
    near = np.argsort(distance, axis=1)[:, :k]
    weight = np.exp(-np.take_along_axis(distance, near, axis=1))
    labels = federation.labels_of(np.asarray([client]), "train")[near]
    return (weight * labels).sum(axis=1) / weight.sum(axis=1)


@pytest.mark.parametrize("method", ["knn-per", "knn-per-extended"])
def test_predictions_are_means_of_neighbours_mixed_with_the_model_by_the_best_lambda(method):
    federation = make_clients()
    result = simulate(method, federation, **HOW)
    shared = simulate("fedavg", federation, **HOW)
    for client in range(4):
        own, mixed = {}, {}
        for split in ("validation", "test"):
            chosen = shared.predictions[split].client == client
            own[split] = shared.predictions[split].p[chosen, 0].astype(float)
            mixed[split] = find_means(result, federation, client, split)
        y = federation.labels_of(np.asarray([client]), "validation")
        errors = [np.sum((lam * mixed["validation"] + (1 - lam) * own["validation"] - y) ** 2) for lam in GRID]
        lam = result.tuned["lambda"][client]
        assert lam == GRID[np.argmin(errors)]
        expected = lam * mixed["test"] + (1 - lam) * own["test"]
        found = result.predictions["test"].p[result.predictions["test"].client == client, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert result.score() > shared.score() + 0.1


@pytest.mark.parametrize("kind", ["quantity", "count"])
@pytest.mark.parametrize("options", [{"decay": "auto"}, {"representation": "auto"}, {"sigma": "auto", "weight": 1.0}])
def test_extensions_beat_the_model_too(kind, options):
    federation = make_clients(kind)
    shared = simulate("fedavg", federation, **HOW)
    assert simulate("knn-per-extended", federation, options=options, **HOW).score() > shared.score()
    assert simulate("knn-per-plus", federation, **HOW).score() > shared.score()


def test_without_neighbours_the_model_predicts_alone():
    federation = make_clients()
    offsets = federation.offsets.copy()
    offsets[4:6] = offsets[3]  # all samples of client 1 are test samples
    federation = replace(federation, offsets=offsets)
    found = simulate("knn-per", federation, options={"weight": 1.0}, **HOW).predictions["test"]
    own = found.client == 1
    np.testing.assert_array_equal(found.p[own], found.parts["global"][own])
    assert not np.allclose(found.p[~own], found.parts["global"][~own])


def test_means_ignore_missing_neighbours_and_survive_far_ones():
    distance = np.asarray([[1.0, 4.0, np.inf], [1e8, 1e8, np.inf], [np.inf, np.inf, np.inf]])
    labels = np.asarray([[-2.0, 6.0, -1], [3.0, 5.0, -1], [-1.0, -1, -1]])
    means = mean_by_distance(Neighbours(distance, labels), -np.sqrt(distance))
    weight = np.exp([-1.0, -2.0])
    np.testing.assert_allclose(means[:2, 0], [(weight * [-2, 6]).sum() / weight.sum(), 4])
    assert np.isnan(means[2, 0])


def test_a_query_is_left_out_by_its_label_though_it_is_negative():
    found = Neighbours(np.asarray([[0.0, 4.0], [0.0, 9.0]]), np.asarray([[-1.5, 2.0], [-1.5, 2.0]]))
    left = leave_out(found, np.asarray([-1.5, np.nan]), np.asarray([2.0, 2.0]), 1)
    assert left.distance.tolist() == [[4], [0]]


@pytest.mark.parametrize("vote", ["count", "label"])
def test_votes_for_classes_are_refused(vote):
    for method in ("knn-per-extended", "knn-per-plus"):
        with pytest.raises(UnsuitedError, match=f"vote={vote} counts votes for classes, and the task is quantity"):
            simulate(method, make_clients(), options={"vote": vote}, **HOW)


def test_stores_on_disk_have_labels_that_are_numbers(pfl, tmp_path):
    federation = make_clients()
    x, y = federation.x.numpy(), federation.y.numpy()
    np.savez(tmp_path / "d.npz", x=x, y=y, owner=np.repeat(np.arange(4), 60))
    import_data(tmp_path / "d.npz", tmp_path / "d", task="quantity")
    partition(tmp_path / "d", tmp_path / "p")
    settings = ("--model", "mlp", "--rounds", "2", "--participation", "1", "--lr", "0.05")
    made = pfl("compare", tmp_path / "p", "-o", tmp_path / "c", "--methods", "fedavg,knn-per,knn-per-plus", *settings)
    assert made.code == 0, made.err
    seed = tmp_path / "c" / "seed-0"
    with h5py.File(seed / "datastore" / "labels.h5") as file, h5py.File(tmp_path / "p" / "samples.h5") as samples:
        bounds = samples["offsets"][...]
        train = [samples["y"][bounds[3 * client] : bounds[3 * client + 1]] for client in range(4)]
        np.testing.assert_array_equal(file["y"][...], np.concatenate(train))
    assert pfl("show", seed / "knn-per", "--verify").code == 0
    ran = pfl("build-datastore", seed / "embeddings", "-o", tmp_path / "x", "--prototypes", "3")
    assert (ran.code, "--prototypes reads classes" in ran.err) == (3, True), ran.err
    assert not (tmp_path / "x").exists()
