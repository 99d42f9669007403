"""kNN-Per and its extensions: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import worlds
from by_hand import K, predict_with_neighbours
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.federation.run import RunInputs
from pflcli.core.knn.indexes import build, flat_indexes
from pflcli.core.knn.stores import Neighbours, Stores, leave_out
from pflcli.core.knn.voting import vote_by_distance
from pflcli.methods import knn_per, knn_per_extended, knn_per_plus
from pflcli.methods.parts.choice_samples import read_parts
from pflcli.methods.parts.folds import Folds


def test_knn_per_with_empty_stores_equals_fedavg():
    run = worlds.run("knn-per", options={"weight": 1.0})
    count = len(run.clients)
    offsets = np.zeros(count + 1, int)
    empty = np.zeros((0, run.embeddings["test"].z.shape[1]), np.float32)
    stores = Stores(*flat_indexes([empty] * count), run.stores.y[:0], offsets)
    run = replace(run, inputs=replace(run.inputs, stores=stores))
    actual = worlds.answers("knn-per", run, {})["test"]
    expected = worlds.answers("fedavg", run, {"global": run.backbone})["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("kernel", ["euclidean", "scaled-squared"])
def test_knn_per_matches_a_brute_force_reference(kernel):
    """p = lambda p_kNN + (1 - lambda) h, neighbours by brute force, exp(-d) taken literally."""
    k, lam = 3, 0.4
    method, options = ("knn-per", {}) if kernel == "euclidean" else ("knn-per-extended", {"kernel": kernel})
    run = worlds.run(method, options={"k": k, "weight": lam, "sigma": 2.0, **options})
    actual = worlds.answers(method, run, {})["test"]
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


@pytest.mark.parametrize("options", [{}, {"sigma": "auto", "grid": (0.0, 0.2, 1.0)}, {"weight": 0.4, "k": 3}])
def test_extension_without_its_options_has_the_bytes_of_the_paper(options):
    first, second = (worlds.run(name, options=options) for name in ("knn-per", "knn-per-extended"))
    for split, answers in worlds.answers("knn-per", first, {}).items():
        assert answers.tobytes() == worlds.answers("knn-per-extended", second, {})[split].tobytes(), split
    one, other = worlds.tuned("knn-per", first, {}), worlds.tuned("knn-per-extended", second, {})
    assert {name: values.tobytes() for name, values in one.items()} == {n: v.tobytes() for n, v in other.items()}


def test_lambda_is_tuned_only_on_validation_samples():
    run = worlds.run("knn-per", options={"k": 2})
    chosen = knn_per.personalize(run, {}, run.clients).tuned["lambda"]
    test = run.embeddings["test"]
    test.z[:] = 0
    test.logits[:] = 0
    np.testing.assert_array_equal(chosen, knn_per.personalize(run, {}, run.clients).tuned["lambda"])
    assert chosen[[1, 3, 5]].tolist() == [0.5] * 3  # no validation samples: nearest to one half


def tune_lambda(knn, model, y, **options):
    from pflcli.core.knn.embedded import Embedded

    part = Embedded(np.zeros((len(y), 1)), np.log(np.asarray(model)), np.asarray(y), np.asarray([0, len(y)]))
    knn, model, folds = np.asarray(knn), np.asarray(model), Folds.divide(part.offsets)
    task = Classification(knn.shape[1])
    paper, apart = knn_per.tune_lambda(
        SimpleNamespace(cfg=knn_per.Config(**options), task=task), knn, model, part.y, folds
    )
    run = SimpleNamespace(cfg=knn_per_extended.Config(**options), task=task)
    tuning = knn_per_extended._tune(run, knn, model, part, np.ones(len(y)), folds)
    assert paper == tuning.weight
    np.testing.assert_array_equal(apart, tuning.weight_apart)
    return paper[0]


def test_tune_chooses_the_hand_computed_lambda():
    right, wrong, hardly = [0.9, 0.1], [0.1, 0.9], [0.6, 0.4]
    assert tune_lambda([right], [right], [0]) == 0.5  # all of the grid is right
    assert tune_lambda([hardly], [wrong], [0]) == 0.9  # .6 lam + .1 (1 - lam) > 1/2 from lam = .8 on
    assert tune_lambda([wrong], [hardly], [0]) == 0.1  # .1 lam + .6 (1 - lam) > 1/2 up to lam = .2
    assert tune_lambda([right, wrong, wrong], [wrong, right, right], [0, 0, 0], grid=(0.0, 1.0)) == 0.0
    for low, high in ((0.1, 0.9), (0.3, 0.7), (0.0, 1.0), (0.45, 0.55)):  # equally near one half: the smaller
        assert tune_lambda([right], [right], [0], grid=(low, high)) == low


def test_vote_by_distance_matches_hand_computed_votes():
    neighbours = Neighbours(np.asarray([[1.0, 4.0, 9.0], [4.0, np.inf, np.inf]]), np.asarray([[2, 0, 2], [1, -1, -1]]))
    e = np.exp([-1.0, -2.0, -3.0])
    p = vote_by_distance(neighbours, 3, -np.sqrt(neighbours.distance))
    np.testing.assert_allclose(p[0], [e[1] / e.sum(), 0, (e[0] + e[2]) / e.sum()])
    np.testing.assert_allclose(p[1], [0, 1, 0])


def test_vote_by_distance_does_not_underflow_when_neighbours_are_far():
    neighbours = Neighbours(np.asarray([[1e8, 1e8 + 1e4]]), np.asarray([[0, 1]]))
    p = vote_by_distance(neighbours, 2, -neighbours.distance)
    np.testing.assert_allclose(p, [[1, 0]])


def test_vote_by_distance_is_zero_without_neighbours():
    neighbours = Neighbours(np.full((1, 2), np.inf), np.full((1, 2), -1))
    assert vote_by_distance(neighbours, 2, -neighbours.distance).tolist() == [[0, 0]]
    none = Neighbours(np.zeros((0, 2)), np.zeros((0, 2), int))
    assert vote_by_distance(none, 2, -none.distance).shape == (0, 2)


def test_search_finds_exact_neighbours():
    draw = np.random.default_rng(0)
    sizes = [40, 3, 0, 17]
    z = [draw.normal(size=(n, 6)).astype(np.float32) for n in sizes]
    y = [draw.integers(0, 4, n) for n in sizes]
    stores = Stores(*flat_indexes(z), np.concatenate(y), np.cumsum([0, *sizes]))
    queries = draw.normal(size=(8, 6)).astype(np.float32)
    bounds = np.asarray([0, 2, 4, 6, 8])
    neighbours = stores.search(np.arange(4), queries, bounds, 5)
    for client in range(4):
        for row in range(bounds[client], bounds[client + 1]):
            squared = ((z[client] - queries[row]) ** 2).sum(axis=1)
            near = np.argsort(squared)[:5]
            depth = len(near)
            np.testing.assert_allclose(neighbours.distance[row, :depth], squared[near], rtol=1e-4)
            assert neighbours.label[row, :depth].tolist() == y[client][near].tolist()
            assert (neighbours.label[row, depth:] == -1).all()
            assert np.isinf(neighbours.distance[row, depth:]).all()


def nearest_distance(run, neighbours):
    return knn_per_extended._kernel_distance(run.cfg, neighbours, run.embeddings["test"].z.shape[1])[:, 0]


def test_auto_sigma_uses_the_distance_of_the_chosen_kernel():
    """By ``scaled-squared`` it is of d^2 / dimension: the median sample's nearest neighbour has the exponent -1."""
    run = worlds.run("knn-per-extended", options={"sigma": "auto", "kernel": "scaled-squared"})
    part = run.embeddings["validation"]
    neighbours = run.stores.search(run.clients, part.z, part.offsets, 1)
    sigma = knn_per.compute_kernel_scales(run.cfg, nearest_distance(run, neighbours), part.offsets)
    expected = np.median(neighbours.distance[: part.offsets[1], 0]) / part.z.shape[1]
    assert sigma[0] == pytest.approx(expected)
    assert sigma[1] == 1  # no validation samples


def test_auto_sigma_is_the_median_distance_to_the_nearest_neighbour():
    run = worlds.run("knn-per-extended", options={"sigma": "auto"})
    part = run.embeddings["validation"]
    neighbours = run.stores.search(run.clients, part.z, part.offsets, 1)
    sigma = knn_per.compute_kernel_scales(run.cfg, nearest_distance(run, neighbours), part.offsets)
    first = np.sqrt(neighbours.distance[:4, 0])
    assert sigma[0] == pytest.approx(np.median(first))
    assert sigma[1] == 1  # no validation samples
    scaled = copy.deepcopy(neighbours)
    scaled.distance[:] *= 4
    np.testing.assert_allclose(
        knn_per.compute_kernel_scales(run.cfg, nearest_distance(run, scaled), part.offsets)[0], 2 * sigma[0]
    )


LAMBDAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def read_embeddings(part, client):
    """Representations, logits and labels of one client, in float64."""
    one = part.take(np.asarray([client]))
    return one.z.astype(float), one.logits.astype(float), one.y


def fade_lambda(lam, decay, scale, distance):
    """lambda(x) = lambda max(0, 1 - decay d(x) / s), (n, 1)."""
    return (lam * np.clip(1 - decay * distance / scale, 0, None))[:, None]


def test_lambda_with_decay_matches_a_short_reference():
    lam, decay, client = 0.8, 0.6, 0
    run = worlds.run("knn-per-extended", options={"k": K, "weight": lam, "decay": decay, "cross_validate": 0})
    stored, labels = (read_embeddings(run.embeddings["train"], client)[i] for i in (0, 2))
    scale = np.median(
        predict_with_neighbours(stored, labels, *read_embeddings(run.embeddings["validation"], client)[:2])[0]
    )
    distance, votes, h = predict_with_neighbours(stored, labels, *read_embeddings(run.embeddings["test"], client)[:2])
    share = fade_lambda(lam, decay, scale, distance)
    assert len(np.unique(share)) > 2  # or nothing falls
    actual = worlds.answers("knn-per-extended", run, {}, np.asarray([client]))["test"]
    np.testing.assert_allclose(actual, share * votes + (1 - share) * h, atol=1e-5)
    assert worlds.tuned("knn-per-extended", run, {})["decay"][[0, 1]] == pytest.approx(
        [decay / scale, 0]
    )  # 1 has no samples


def test_lambda_and_decay_are_chosen_jointly_on_validation_samples():
    run = worlds.run("knn-per-extended", options={"k": K, "decay": "auto", "cross_validate": 0}, seed=6)
    chosen = worlds.tuned("knn-per-extended", run, {})
    falling = 0
    for client in (0, 2, 4, 6):
        stored, labels = (read_embeddings(run.embeddings["train"], client)[i] for i in (0, 2))
        z, logits, y = read_embeddings(run.embeddings["validation"], client)
        distance, votes, h = predict_with_neighbours(stored, labels, z, logits)
        scale = np.median(distance)
        counts = {
            (lam, decay): ((s := fade_lambda(lam, decay, scale, distance)) * votes + (1 - s) * h).argmax(axis=1) == y
            for lam in LAMBDAS
            for decay in (0, 0.2, 1 / 3, 0.5)
        }
        counts = {key: int(right.sum()) for key, right in counts.items()}
        best = {key for key, count in counts.items() if count == max(counts.values())}
        smallest = min(decay for _, decay in best)
        expected = min((lam for lam, decay in best if decay == smallest), key=lambda lam: (abs(10 * lam - 5), lam))
        assert chosen["decay"][client] == pytest.approx(smallest / scale)
        assert chosen["lambda"][client] == expected
        falling += smallest > 0
    assert falling  # or the choice is not tested
    assert chosen["lambda"][3] == 0.5
    assert chosen["decay"][3] == 0  # no validation samples


def test_huge_decay_gives_the_global_model_and_tiny_decay_plain_knn_per():
    plain = worlds.run("knn-per", options={"k": K})
    expected = worlds.answers("knn-per", plain, {})["test"]
    slow = worlds.run("knn-per-extended", options={"k": K, "decay": 1e-12})
    np.testing.assert_allclose(worlds.answers("knn-per-extended", slow, {})["test"], expected, atol=1e-6)
    fast = worlds.run("knn-per-extended", options={"k": K, "decay": 1e6})
    actual = worlds.answers("knn-per-extended", fast, {}, np.asarray([0]))["test"]
    h = worlds.answers("fedavg", fast, {"global": fast.backbone}, np.asarray([0]))["test"]
    np.testing.assert_allclose(actual, h, atol=1e-6)


@pytest.mark.parametrize("method", ["knn-per-extended", "knn-per-plus"])
def test_given_choices_make_predictions_independent_of_validation_samples(method):
    """As with refit: nothing of the answers depends on validation samples once all that they choose is given."""
    options = {"k": K, "decay": "auto", "sigma": "auto"}
    inputs = RunInputs(choices=worlds.tuned(method, worlds.run(method, options=options), {}))
    assert sorted(inputs.choices) == ["decay", "lambda", "sigma"]
    spoiled = worlds.spoiled(worlds.federation(), "validation")
    runs = [worlds.run(method, options=options, inputs=inputs, data=each) for each in (worlds.federation(), spoiled)]
    first, second = (worlds.answers(method, each, {})["test"] for each in runs)
    assert first.tobytes() == second.tobytes()


SPACES = [("features", "cosine"), ("logits", "euclidean"), ("logits", "cosine")]


def vectors(part, representation, distance):
    """The samples' vectors in a space, as a few lines."""
    values = (part.z if representation == "features" else part.logits).astype(float)
    return values / np.linalg.norm(values, axis=1, keepdims=True) if distance == "cosine" else values


@pytest.mark.parametrize(("representation", "distance"), SPACES)
def test_neighbours_in_another_space_against_a_few_lines(representation, distance):
    k, lam = 3, 0.4
    options = {"k": k, "weight": lam, "sigma": 0.5, "representation": representation, "distance": distance}
    run = worlds.run("knn-per-extended", options=options)
    actual = worlds.answers("knn-per-extended", run, {})["test"]
    parts, expected = run.embeddings, []
    for client in run.clients:
        stored, query = (parts[split].take(np.asarray([client])) for split in ("train", "test"))
        z, x = vectors(stored, representation, distance), vectors(query, representation, distance)
        for one, logits in zip(x, query.logits.astype(float), strict=True):
            d = np.linalg.norm(z - one, axis=1)
            near = np.argsort(d, kind="stable")[:k]
            knn = np.bincount(stored.y[near], weights=np.exp(-d[near] / 0.5), minlength=worlds.CLASSES)
            h = np.exp(logits) / np.exp(logits).sum()
            expected.append(lam * knn / knn.sum() + (1 - lam) * h)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    paper = worlds.answers("knn-per", worlds.run("knn-per", options={"k": k, "weight": lam, "sigma": 0.5}), {})["test"]
    assert np.abs(actual - paper).max() > 1e-3


def world_with_noise(**options):
    """A world in which features of clients 0 and 2 have noise that the head does not see: their logits are better."""
    run = worlds.run("knn-per-extended", options={"k": 1, "weight": 1.0, "cross_validate": 0, **options})
    head = run.backbone["head.weight"].numpy()
    hidden = np.linalg.svd(head)[2][len(head) :]  # (d - C, d), orthogonal to all rows of the head
    draw = np.random.default_rng(0)
    stored = []
    for part in run.embeddings.values():
        noise = (50 * draw.normal(size=(len(part.z), len(hidden))) @ hidden).astype(np.float32)
        is_noisy = np.repeat(np.isin(run.clients, [0, 2]), np.diff(part.offsets))
        part.z[is_noisy] += noise[is_noisy]
    for client in run.clients:
        stored.append(run.embeddings["train"].take(np.asarray([client])).z)
    blob, offsets = flat_indexes(stored)
    run = replace(run, inputs=replace(run.inputs, stores=replace(run.stores, blob=blob, bytes=offsets)))
    return run


def test_each_client_chooses_the_space_that_is_right_most_often_on_its_validation_samples():
    auto = world_with_noise(representation="auto", distance="auto")
    chosen = knn_per_extended.personalize(auto, {}, auto.clients)
    assert {*chosen.tuned} == {"lambda", "logits", "cosine"}
    part = auto.embeddings["validation"].take(auto.clients)
    rights, answers_by_space = [], []
    for representation, distance in [("features", "euclidean"), *SPACES]:
        run = world_with_noise(representation=representation, distance=distance)
        predictor = knn_per_extended.personalize(run, {}, run.clients)
        right = predictor.answer("validation")["p"].argmax(axis=1) == part.y
        rights.append([right[a:b].sum() for a, b in zip(part.offsets, part.offsets[1:], strict=False)])
        answers_by_space.append(predictor.answer("test")["p"])
    best = np.argmax(rights, axis=0)
    assert len({*best}) > 1  # otherwise the test would not tell whether clients choose
    np.testing.assert_array_equal(2 * chosen.tuned["logits"] + chosen.tuned["cosine"], best)
    test = auto.embeddings["test"].take(auto.clients)
    of_sample = np.repeat(best, np.diff(test.offsets))
    expected = np.stack(answers_by_space)[of_sample, np.arange(len(of_sample))]
    np.testing.assert_allclose(chosen.answer("test")["p"], expected, atol=1e-6)


def test_the_space_of_an_earlier_run_is_taken():
    count = len(worlds.federation().clients)
    inputs = RunInputs(choices={"lambda": np.full(count, 0.5), "logits": np.arange(count) % 2.0})
    run = worlds.run("knn-per-extended", options={"k": 1, "representation": "auto"}, inputs=inputs)
    predictor = knn_per_extended.personalize(run, {}, run.clients)
    np.testing.assert_array_equal(predictor.tuned["logits"], np.arange(count) % 2.0)


def test_compressed_stores_and_noisy_choices_are_refused():
    with pytest.raises(ValueError, match="no epsilon"):
        knn_per_extended.Config(vote="noisy", distance="auto")
    run = worlds.run("knn-per-extended", options={"distance": "cosine"})
    blob, offsets = [], [0]
    for client in run.clients:
        stored = run.embeddings["train"].take(np.asarray([client]))
        raw, _ = build("SQ8", stored.z, {})
        blob.append(raw)
        offsets.append(offsets[-1] + len(raw))
    stores = replace(run.stores, blob=np.concatenate(blob), bytes=np.asarray(offsets))
    run = replace(run, inputs=replace(run.inputs, stores=stores))
    with pytest.raises(UnsuitedError, match="compressed"):
        knn_per_extended.personalize(run, {}, run.clients)


def vote_by_hand(z, y, x, k):
    """The votes on a query ``x`` of the nearest samples."""
    d = np.linalg.norm(z - x, axis=1)
    near = np.argsort(d, kind="stable")[:k]
    votes = np.bincount(y[near], np.exp(-d[near]), minlength=worlds.CLASSES)
    return votes / max(votes.sum(), 1e-300)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("few", [4, 5])
def test_cross_validate_chooses_also_by_training_samples_of_clients_with_few_others(few, distance):
    """Client 0 has four validation samples, 2 and 6 have three, and 3 none."""
    k, options = 3, {"k": 3, "distance": distance}
    run = worlds.run("knn-per-extended", options={**options, "cross_validate": few})
    chosen = worlds.tuned("knn-per-extended", run, {})["lambda"]
    paper = worlds.run("knn-per-extended", options={**options, "cross_validate": 0})
    plain = worlds.tuned("knn-per-extended", paper, {})["lambda"]
    for client in (0, 2, 3, 6):
        train, validation = (run.embeddings[split].take(np.asarray([client])) for split in ("train", "validation"))
        if len(validation.y) >= few:
            assert chosen[client] == plain[client]
            continue
        stored, queries = (
            part.z / (np.linalg.norm(part.z, axis=1, keepdims=True) if distance == "cosine" else 1)
            for part in (train, validation)
        )
        votes = [vote_by_hand(stored, train.y, x, k) for x in queries]
        for row in range(len(stored)):
            others = np.arange(len(stored)) != row
            votes.append(vote_by_hand(stored[others], train.y[others], stored[row], k))
        model = knn_per.softmax(np.concatenate([validation.logits, train.logits]))
        assert chosen[client] == tune_lambda(votes, model, np.concatenate([validation.y, train.y]))


def test_leave_out_removes_only_the_query_itself():
    neighbours = Neighbours(
        np.asarray([[0.0, 1.0, 2.0], [0.0, 0.0, 2.0], [0.0, 1.0, 2.0], [0.5, 1.0, 2.0], [0.0, np.inf, np.inf]]),
        np.asarray([[1, 2, 0], [2, 1, 0], [1, 2, 0], [1, 2, 0], [1, -1, -1]]),
    )
    left = leave_out(neighbours, np.asarray([1, 1, -1, 1, 1]), np.ones(5), 2)
    assert left.label.tolist() == [[2, 0], [2, 0], [1, 2], [1, 2], [-1, -1]]
    assert left.distance.tolist() == [[1, 2], [0, 2], [0, 1], [0.5, 1], [np.inf, np.inf]]
    alone = leave_out(Neighbours(np.zeros((1, 1)), np.ones((1, 1), int)), np.asarray([1]), np.ones(1), 3)
    assert alone.label.tolist() == [[-1]]


def lambdas(method, run=None, **options):
    """The lambda of each client."""
    return worlds.tuned(method, run or worlds.run(method, options=options), {})["lambda"].tolist()


def with_stores(run, stored, labels):
    """The run with other vectors and labels in the stores of its clients."""
    sizes = np.cumsum([0, *map(len, stored)])
    return replace(run, inputs=replace(run.inputs, stores=Stores(*flat_indexes(stored), np.concatenate(labels), sizes)))


@pytest.mark.parametrize("method", ["knn-per", "knn-per-extended"])
def test_clients_with_fewer_than_five_validation_samples_choose_also_by_stored_ones(method):
    assert lambdas(method) == lambdas(method, cross_validate=5) != lambdas(method, cross_validate=0)
    enough = worlds.federation(
        client_sizes=[(train, validation and 5, test) for train, validation, test in worlds.SIZES]
    )
    chosen, paper = (
        lambdas(method, worlds.run(method, options=options, data=enough)) for options in ({}, {"cross_validate": 0})
    )
    has_none = enough.sizes("validation") == 0
    assert [*np.asarray(chosen)[~has_none]] == [*np.asarray(paper)[~has_none]]


def test_only_stores_of_samples_are_chosen_by():
    """A prototype or compressed vector can not be left out, nor do clients choose by a sample that is not stored."""
    run = worlds.run("knn-per", options={})
    parts = [run.embeddings["train"].take(np.asarray([client])) for client in run.clients]
    stored, labels = [part.z for part in parts], [part.y for part in parts]
    few, paper = lambdas("knn-per", run), lambdas("knn-per", cross_validate=0)
    changed = [client for client in run.clients if few[client] != paper[client]]
    moved = changed[0]
    prototypes = with_stores(run, [z + 1e-3 * (i == moved) for i, z in enumerate(stored)], labels)
    mixed = lambdas("knn-per", prototypes)
    assert [client for client in run.clients if mixed[client] != few[client]] == [moved]
    half = with_stores(run, [z[::2] for z in stored], [y[::2] for y in labels])
    _, choice = read_parts(half, half.clients)
    sizes = np.bincount(choice.folds.owner[choice.is_stored], minlength=len(half.clients))
    assert sizes.tolist() == [len(y[::2]) for y in labels]


def test_noisy_votes_and_fine_tuned_networks_leave_stored_samples_out():
    """Noise would need an epsilon for them, and a network that has been trained on them looks better than it is."""
    assert knn_per_extended.Config(vote="noisy").few == knn_per_plus.Config().few == 0
    run = worlds.run("knn-per-extended", options={"vote": "noisy"})
    assert not read_parts(run, run.clients)[1].is_stored.any()


def test_cross_validate_is_refused_where_a_sample_cannot_be_left_out():
    run = worlds.run("knn-per-extended", options={"cross_validate": 10})
    stores = replace(run.stores, blob=np.array(run.stores.blob))
    run = replace(run, inputs=replace(run.inputs, stores=stores))
    run.embeddings["train"].z[:] += 1  # stores of other vectors, such as prototypes
    with pytest.raises(UnsuitedError, match="exact store of samples"):
        worlds.answers("knn-per-extended", run, {})
    with pytest.raises(UsageError, match="leave out cross_validate"):
        worlds.run("knn-per-extended", options={"cross_validate": 10, "vote": "noisy"})
    with pytest.raises(UsageError, match="leave out cross_validate"):
        worlds.run("knn-per-plus", options={"cross_validate": 10})
