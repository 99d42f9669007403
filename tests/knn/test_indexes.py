"""FAISS indexes of every kind: searches, too few samples, refusals, and memory."""

from __future__ import annotations

import csv
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pflcli.artifacts.kinds import datastore, embeddings, predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.personalize import personalize
from pflcli.core.errors import ConflictError, UsageError
from pflcli.core.knn import capacity, indexes
from pflcli.core.knn.indexes import flat_indexes
from pflcli.core.knn.stores import Stores

KINDS = (
    "SQ8", "SQfp16", "PQ4x4", "PQ4x4fs", "PCA8,Flat", "PCAR8,SQ8", "RR8,PQ4x4", "HNSW32", "HNSW32_PQ4x4", "IVF4,Flat",
    "IVF4,PQ4x4", "PQ4x4,RFlat", "PCA8,HNSW16", "PCA8,IVF4,Flat", "L2norm,Flat",
)  # fmt: skip
D, ALL = 16, 90


def make_points(n, seed):
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)


def build_index(kind, z, **parameters):
    raw, built = indexes.build(kind, z, parameters)
    assert built == kind
    return raw


@pytest.mark.parametrize("kind", KINDS)
def test_search_equals_faiss(kind):
    import faiss

    z, queries = make_points(ALL, 0), make_points(25, 1)
    raw = build_index(kind, z)
    distance, row = indexes.search(raw, queries, 7)
    expected, same = faiss.deserialize_index(raw).search(queries, 7)
    np.testing.assert_array_equal(row, same)
    np.testing.assert_allclose(distance, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["PCA16,Flat", "HNSW32", "SQfp16", "IVF4,Flat"])
def test_lossless_indexes_find_the_nearest_neighbours(kind):
    z, queries = make_points(ALL, 0), make_points(25, 1)
    parameters = {"nprobe": "4"} if "IVF" in kind else {}
    sizes = np.asarray([0, ALL])
    exact, other = (
        Stores(raw, np.asarray([0, len(raw)]), np.arange(ALL), sizes).search([0], queries, np.asarray([0, 25]), 5)
        for raw in (flat_indexes([z])[0], build_index(kind, z, **parameters))
    )
    assert (exact.label == other.label).mean() > 0.98
    np.testing.assert_allclose(exact.distance, other.distance, rtol=0.02)


@pytest.mark.parametrize("kind", ["PQ4x4", "IVF4,Flat", "PCA8,Flat", "PQ4x4,RFlat"])
def test_build_uses_the_exact_index_with_too_few_training_samples(kind, capfd):
    for count in (0, 3):
        raw, built = indexes.build(kind, make_points(count, 0), {})
        assert built == indexes.EXACT
        np.testing.assert_array_equal(indexes.flat_vectors(raw), make_points(count, 0))
    assert indexes.build(kind, make_points(20, 0), {})[1] == kind
    assert capfd.readouterr() == ("", "")


def test_search_returns_empty_places_when_probed_lists_have_too_few_rows():
    z = make_points(ALL, 0)
    distance, row = indexes.search(build_index("IVF16,Flat", z), make_points(25, 1), 20)
    assert (row < 0).any()
    assert np.isfinite(distance[row >= 0]).all()
    # Such places stay empty in a search of stores.
    raw = build_index("IVF16,Flat", z)
    store = Stores(raw, np.asarray([0, len(raw)]), np.arange(ALL), np.asarray([0, ALL]))
    near = store.search([0], make_points(25, 1), np.asarray([0, 25]), 20)
    np.testing.assert_array_equal(near.label < 0, np.isinf(near.distance))
    assert (near.label < 0).sum() == (row < 0).sum()


@pytest.mark.parametrize("kind", ["Wonder", "PQ15x4", "PCA16", "LSH", "IDMap,Flat", "NSG16", "", "FlatIP"])
def test_check_refuses_unknown_indexes(kind):
    with pytest.raises(UsageError) as error:
        indexes.check(kind, D, {})
    assert f"--index {kind}" in error.value.message
    assert "--index IVF8,Flat" in error.value.fix


@pytest.mark.parametrize("options", [{"nprobe": "4"}, {"efSearch": "many"}, {"wieght": "1"}])
def test_check_refuses_unknown_index_options(options):
    for kind in ("Flat", "HNSW32"):
        with pytest.raises(UsageError, match=next(iter(options))):
            indexes.check(kind, D, options)
    indexes.check("IVF4,Flat", D, {"nprobe": "2"})


def read_rows(path):
    with (path / "clients.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["SQ8", "PQ8x4", "PCA16,Flat", "HNSW32", "IVF4,Flat"])
def test_datastore_of_every_index_type_predicts(small, tmp_path, kind):
    outcome = build_datastore(small.e, tmp_path / "d", index=kind)
    artifact = open_artifact(tmp_path / "d")
    packed = datastore.read(artifact)
    assert np.diff(packed.bytes).tolist() == [int(row["bytes"]) for row in read_rows(tmp_path / "d")]
    assert outcome.summary["bytes_client"]["max"] == np.diff(packed.bytes).max()
    assert outcome.summary["exact_instead"] == sum(row["index"] == "Flat" for row in read_rows(tmp_path / "d"))
    personalize("knn-per", tmp_path / "d", tmp_path / "knn", options={"weight": 1.0})
    personalize("knn-per", small.d, tmp_path / "exact", options={"weight": 1.0})
    approximate, exact = (predictions.read(open_artifact(tmp_path / name), "test") for name in ("knn", "exact"))
    agree = (approximate.parts["p"].argmax(axis=1) == exact.parts["p"].argmax(axis=1)).mean()
    assert agree > (0.9 if kind in ("SQ8", "HNSW32") else 0.6)


def test_datastore_gives_clients_with_few_samples_the_exact_index(small, tmp_path):
    outcome = build_datastore(small.e, tmp_path / "d", index="PQ8x4", capacity=0.3)
    train = [int(row["samples"]) for row in read_rows(tmp_path / "d")]
    exact = [row["index"] == "Flat" for row in read_rows(tmp_path / "d")]
    assert exact == [n < 16 for n in train]
    assert outcome.summary["exact_instead"] == sum(exact) > 0


def test_build_datastore_is_deterministic(small, tmp_path):
    for kind in ("PQ8x4", "HNSW16", "IVF4,Flat"):
        paths = [build_datastore(small.e, tmp_path / f"{kind}-{i}", index=kind).path for i in (0, 1)]
        assert (paths[0] / "stores.faiss").read_bytes() == (paths[1] / "stores.faiss").read_bytes()


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"capacity": 0.5}, {"capacity_spread": 0.1}),
        ({}, {"prototypes": 3}),
        ({"index": "IVF4,Flat"}, {"parameters": {"nprobe": 2}}),
    ],
)
def test_build_datastore_with_another_option_conflicts(small, tmp_path, options, other):
    build_datastore(small.e, tmp_path / "d", **options)
    with pytest.raises(ConflictError, match="another request"):
        build_datastore(small.e, tmp_path / "d", **options, **other)


def test_capacity_spread_gives_half_of_the_clients_less_capacity(small, tmp_path):
    sizes = np.diff(embeddings.read(open_artifact(small.e))["train"].offsets)
    weak = []
    for spread in (0.1, 0.4):
        build_datastore(small.e, tmp_path / f"{spread}", capacity=0.5, capacity_spread=spread)
        own = [float(row["capacity"]) for row in read_rows(tmp_path / f"{spread}")]
        assert sorted(set(own)) == pytest.approx([0.5 - spread, 0.5 + spread])
        assert [int(row["samples"]) for row in read_rows(tmp_path / f"{spread}")] == [
            np.ceil(round(part * n, 6)) for part, n in zip(own, sizes, strict=True)
        ]
        weak.append([part < 0.5 for part in own])
    assert weak[0] == weak[1]
    assert sum(weak[0]) == 3


def test_capacity_spread_rounds_down_half_of_an_odd_number_of_clients():
    assert sorted(capacity.draw_capacities(0.5, 0.25, 5, seed=0).tolist()) == [0.25] * 2 + [0.75] * 3


def test_arrival_order_differs_by_seed_split_and_client():
    keys = [(seed, split, client) for seed in (0, 1) for split in ("train", "validation") for client in (0, 1)]
    orders = [capacity.arrival_order(*key, 50).tolist() for key in keys]
    assert all(sorted(order) == [*range(50)] for order in orders)
    assert len({*map(tuple, orders)}) == len(keys)


@pytest.mark.parametrize("options", [{"capacity_spread": 0.1}, {"capacity": 0.5, "capacity_spread": -0.1}])
def test_capacity_spread_beyond_0_to_1_is_refused(small, tmp_path, options):
    with pytest.raises(UsageError, match="--capacity-spread"):
        build_datastore(small.e, tmp_path / "d", **options)


def test_indexes_of_different_sizes_are_read_in_parallel(monkeypatch):
    """FAISS has its limits once for a process: whoever sets them gives way to other threads here, before it reads."""
    module, draw = indexes.faiss(), np.random.default_rng(0)
    limit = module.set_deserialization_loop_limit
    monkeypatch.setattr(module, "set_deserialization_loop_limit", lambda n: (limit(n), time.sleep(1e-3)))
    known = [draw.normal(size=(n, 8)).astype(np.float32) for n in (3, 4000)]
    raws = [np.asarray(indexes.faiss().serialize_index(make_filled_index(z))) for z in known]
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda place: indexes.read(raws[place % 2]).ntotal, range(40)))
    assert counts == [3, 4000] * 20


def make_filled_index(z):
    index = indexes.faiss().index_factory(z.shape[1], "SQ8")
    index.train(z)
    index.add(z)
    return index
