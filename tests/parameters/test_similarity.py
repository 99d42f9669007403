"""Similarity of models, weighted means per receiver, bipartitions, and neighbours compared with the truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from pflcli.artifacts.row_file import RowFile
from pflcli.core import parameters
from pflcli.core.engine import model_algebra
from pflcli.core.errors import ComputationError
from pflcli.core.parameters import similarity
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.parameters.row_storage import InMemoryRows
from pflcli.evaluation.metrics import client_relations
from pflcli.methods.parts import peers

NAMES = ("a", "b")


def make_table(count=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    models = ModelTable({"a": torch.zeros(3, 2), "b": torch.zeros(()), "steps": torch.tensor(0)}, count, InMemoryRows())
    models[range(count)] = {
        "a": torch.randn(count, 3, 2, generator=draw),
        "b": torch.randn(count, generator=draw),
        "steps": torch.randint(0, 9, (count,), generator=draw),
    }
    return models


def flatten_model(models, client):
    model = models[[client]]
    return np.append(model["a"].numpy().ravel(), model["b"].numpy()).astype(float)


@pytest.mark.parametrize("room", [1, 2, 9])
def test_weighted_means_are_computed_for_each_receiver(room):
    models, weights = make_table(), np.asarray([[1.0, 0, 3, 0, 0], [0, 0, 0, 0, 2], [1, 1, 1, 1, 1]])
    plain, receivers = models[range(5)], []
    for rows, means in model_algebra.weighted_means(models, weights, room):
        for place, receiver in enumerate(range(rows.start, rows.stop)):
            receivers.append(receiver)
            w = torch.from_numpy(weights[receiver] / weights[receiver].sum())
            for name in NAMES:
                expected = (plain[name].double() * w.view(-1, *[1] * (plain[name].ndim - 1))).sum(0).float()
                torch.testing.assert_close(means[name][place], expected)
            assert means["steps"][place] == plain["steps"][w > 0].max()
            assert means["steps"].dtype == torch.int64
    assert receivers == [0, 1, 2]


def test_weighted_mean_of_one_model_is_identical_to_it():
    models = make_table()
    ((_, mean),) = model_algebra.weighted_means(models, 7.0 * np.eye(5), 9)
    assert worlds.same(mean, models[range(5)])


@pytest.mark.parametrize("room", [1, 2, 9])
def test_gram_matrix_matches_hand_computed_inner_products(room):
    models, ids = make_table(), np.asarray([4, 0, 2])
    origin = {"a": torch.full((3, 2), 0.5), "b": torch.tensor(-1.0)}
    shift = np.append(np.full(6, 0.5), -1.0)
    rows = [flatten_model(models, i) - shift for i in ids]
    expected = [[a @ b for b in rows] for a in rows]
    actual = model_algebra.gram_matrix(models, ids, NAMES, room, origin)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    distance = [[((a - b) ** 2).sum() for b in rows] for a in rows]
    np.testing.assert_allclose(similarity.squared_distances(actual), distance, atol=1e-6)
    cosine = [[a @ b / math.sqrt((a @ a) * (b @ b)) for b in rows] for a in rows]
    np.testing.assert_allclose(similarity.cosines(actual), cosine, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("room", [1, 3, 9])
def test_read_columns_yields_pieces_within_the_memory_limit(room, tmp_path):
    models, ids = make_table(), np.asarray([3, 0, 4])
    stored = ModelTable(models.default, 6, RowFile(tmp_path / "rows", 0, empty=True))
    stored[range(4)] = models[range(4)]  # client 4 has the default
    stacked, columns = stored[ids], {name: [] for name in models.default}
    for name, place, piece in stored.read_columns(ids, models.default, room):
        assert piece.numel() * piece.element_size() <= max(room * 40, len(ids) * 8)
        assert place.stop - place.start == piece.shape[1]
        columns[name].append(piece)
    for name, pieces in columns.items():
        assert torch.equal(
            torch.cat(pieces, dim=1), stacked[name].flatten(1) if stacked[name].ndim > 1 else stacked[name][:, None]
        )


def test_means_and_gram_matrix_of_many_models_match_double_precision():
    draw, count = np.random.default_rng(0), 70  # more than a block
    models = ModelTable({"a": torch.ones(300, 60), "b": torch.zeros(())}, count, InMemoryRows())
    models[range(count)] = {"a": 1 + 0.1 * torch.randn(count, 300, 60), "b": torch.randn(count)}
    rows = np.stack([flatten_model(models, i) for i in range(count)])
    origin = np.append(np.ones(18000), 0)
    actual = model_algebra.gram_matrix(models, np.arange(count), NAMES, 9, models.default)
    np.testing.assert_allclose(actual, (rows - origin) @ (rows - origin).T, rtol=1e-5, atol=1e-3)
    weights = draw.random((3, count))
    for part, means in model_algebra.weighted_means(models, weights, 70):
        for place, receiver in enumerate(range(part.start, part.stop)):
            expected = weights[receiver] @ rows / weights[receiver].sum()
            np.testing.assert_allclose(
                np.append(means["a"][place].flatten(), means["b"][place]), expected, rtol=2e-6, atol=1e-6
            )


def test_cosines_with_zero_vectors_are_0():
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0], [2.0, 4.0], [-1.0, -2.0]])
    np.testing.assert_allclose(similarity.cosines_to_first(rows), [0, 1, -1], atol=1e-7)
    np.testing.assert_allclose(similarity.cosines_to_first(rows[[1, 0]]), [0])
    assert similarity.cosines(np.zeros((2, 2))).tolist() == [[0, 0], [0, 0]]


def test_centred_cosines_subtract_the_mean():
    common = torch.tensor([100.0, 100.0])
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, -0.1]]) + common
    assert similarity.cosines_to_first(rows).min() > 0.999
    np.testing.assert_allclose(similarity.cosines_to_first(rows, centred=True), [1, -1, -1], atol=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_bipartition_by_single_linkage_is_the_best_split(seed):
    """Sattler et al.: the split with the smallest largest similarity across it, found by trying all."""
    draw = np.random.default_rng(seed)
    alike = draw.uniform(-1, 1, (7, 7))
    alike = (alike + alike.T) / 2

    def across(far):
        return alike[np.ix_(far, ~far)].max()

    split = similarity.bipartition(alike, "single")
    every = (np.asarray((False, *rest)) for rest in itertools.product([False, True], repeat=6) if any(rest))
    assert across(split) == pytest.approx(min(across(far) for far in every))
    assert not split[0]


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_bipartition_finds_clear_groups_in_any_order(linkage):
    group = np.asarray([0, 1, 1, 0, 1, 0, 0])
    alike = np.where(group[:, None] == group, 0.8, -0.2) + 0.01 * np.random.default_rng(0).normal(size=(7, 7))
    original = alike.copy()
    assert similarity.bipartition(alike, linkage).tolist() == group.astype(bool).tolist()
    assert similarity.bipartition(np.ones((2, 2)), linkage).tolist() == [False, True]
    np.testing.assert_array_equal(alike, original)


def test_bipartition_by_complete_linkage_does_not_chain():
    place = np.asarray([0.0, 1.0, 2.0, 3.0, 4.0, 5.5])
    alike = -np.abs(place[:, None] - place)
    assert similarity.bipartition(alike, "single").tolist() == [False] * 5 + [True]
    assert similarity.bipartition(alike, "complete").tolist() == [False] * 4 + [True] * 2


def test_loss_per_group_matches_cross_entropy_of_each_client():
    run = worlds.run()
    data, rows = run.federation, [run.federation.rows(c, "train") for c in (3, 5, 0)]
    losses = run.loss_per_group(run.init, rows)
    for value, part in zip(losses, rows, strict=True):
        if len(part):
            loss = functional.cross_entropy(worlds.logits(run.init, data.x[part]), data.y[part])
            assert value == pytest.approx(float(loss), rel=1e-5)
    assert np.isnan(losses[1])
    assert np.isnan(run.loss_per_group(run.init, rows[1:2])).all()


def test_initial_models_start_with_the_common_one_and_differ():
    run = worlds.run()
    drawn = run.initial_models(3)
    assert worlds.same(parameters.pick(drawn, 0), run.init)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(drawn["head.weight"][a], drawn["head.weight"][b])
    run.draw_model = None
    assert worlds.same(parameters.pick(run.initial_models(1), 0), run.init)
    with pytest.raises(ComputationError, match="only one initial model"):
        run.initial_models(2)


def test_precision_recall_matches_hand_computed_values():
    cluster = np.asarray([0, 0, 0, 1, 1, 2])
    table = np.zeros((6, 6), dtype=bool)
    table[0, [0, 1, 3]] = True  # itself does not count: precision 1/2, recall 1/2
    table[1, [0, 2]] = True  # 1, 1
    table[3, 0] = True  # 0, 0
    precision, recall = client_relations.precision_recall(table, cluster)
    assert precision == pytest.approx((1 / 2 + 1 + 0) / 3)  # the others have no neighbours
    assert recall == pytest.approx((1 / 2 + 1 + 0 + 0 + 0) / 5)  # the last is alone
    undefined = client_relations.precision_recall(np.zeros((2, 2), bool), np.asarray([0, 1]))
    assert all(math.isnan(value) for value in undefined)
    own = client_relations.share_cluster(cluster)
    assert client_relations.precision_recall(own, cluster) == (1, 1)


@pytest.mark.parametrize("remembered", [11, 10])
def test_record_graph_and_unpack_restore_neighbours(monkeypatch, remembered):
    """Also in blocks of few clients; with more clients than are remembered it is the last round's."""
    monkeypatch.setattr(peers, "REMEMBERED", remembered)
    monkeypatch.setattr(peers, "_MAX_CELLS", 33)
    draw = np.random.default_rng(0)
    rounds = draw.random((3, 11, 11)) < 0.5
    rounds[2, ::2] = rounds[1, ::2]
    graph, everybody = torch.zeros(0, 11, 2, dtype=torch.uint8), np.arange(11)
    for neighbours, cohort in zip(rounds, (everybody, everybody, everybody[1::2]), strict=True):
        reports = peers.report_neighbours(cohort, [np.flatnonzero(neighbours[i]) for i in cohort], 11)
        graph = peers.record_graph(graph, reports)
    expected = rounds if remembered == 11 else rounds[2:]
    assert graph.dtype == torch.uint8
    assert graph.shape == (len(expected), 11, 2)
    np.testing.assert_array_equal(client_relations.unpack_graph(graph.numpy(), 11), expected)
