"""``pfl update-datastore``: the samples that each policy keeps, their order, and refusals."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from pflcli.artifacts.kinds import datastore, embeddings, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import ancestor, open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.evaluate import evaluate
from pflcli.commands.extract import extract
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.knn import capacity as capacities
from pflcli.core.knn.indexes import flat_vectors
from pflcli.core.reporter import NullReporter
from pflcli.plugins.knn_tools.update_datastore import Rows, merge, update_datastore

SAMPLES = ("y", "sample")


def make_rows(*ids):
    ids = np.asarray(ids, np.int64)
    return Rows(np.column_stack([ids, ids]).astype(np.float32), ids % 3, ids)


@pytest.mark.parametrize(
    ("policy", "distinct", "expected", "added"),
    [
        ("fifo", True, [3, 4, 8], 1),  # 4 is there already, 1 is the oldest
        ("fifo", False, [4, 4, 8], 2),
        ("concatenate", True, [1, 3, 4, 8], 1),
        ("concatenate", False, [1, 3, 4, 4, 8], 2),
        ("fixed", True, [1, 3, 4], 0),
    ],
)
def test_merge_keeps_the_samples_of_each_policy(policy, distinct, expected, added):
    actual, count = merge(make_rows(1, 3, 4), make_rows(4, 8), policy, distinct=distinct)
    assert (actual.sample.tolist(), count) == (expected, added)
    np.testing.assert_array_equal(actual.z[:, 0], actual.sample)
    np.testing.assert_array_equal(actual.y, actual.sample % 3)


def test_fifo_merge_keeps_the_newest_when_more_arrive_than_fit():
    assert merge(make_rows(1, 2), make_rows(5, 6, 7), "fifo", distinct=True)[0].sample.tolist() == [6, 7]


@pytest.fixture(scope="module")
def two_halves(tmp_path_factory):
    """Two disjoint halves of the writers' digits, dealt to five clients twice, under one backbone."""
    at = tmp_path_factory.mktemp("shift")
    for i, seed in ((1, 0), (2, 1)):
        options = {"alpha": "0.3"}
        partition("writers", at / f"p{i}", scheme="dirichlet", clients=5, options=options, part=(i, 2), seed=seed)
    train_global(at / "p1", at / "b", settings={"model": "mlp", "rounds": 2})
    extract(at / "b", at / "e1")
    extract(at / "b", at / "e2", partition=at / "p2")
    build_datastore(at / "e1", at / "d", capacity=0.5)
    return at


def samples_by_client(path):
    """Return the samples, classes and vectors of each client's store."""
    packed = datastore.read(open_artifact(path))
    for client in range(len(packed.offsets) - 1):
        span = slice(packed.offsets[client], packed.offsets[client + 1])
        z = flat_vectors(packed.blob[packed.bytes[client] : packed.bytes[client + 1]])
        yield packed.sample[span], packed.y[span], z


def test_parts_of_a_dataset_are_disjoint_and_complete(two_halves):
    first, second = (partitions.read(open_artifact(two_halves / name)) for name in ("p1", "p2"))
    assert not set(first.sample) & set(second.sample)
    undivided = partition("writers", two_halves / "whole", scheme="iid", clients=1)
    known = partitions.read(open_artifact(undivided.path))
    assert set(first.sample) | set(second.sample) == set(known.sample)
    for part in (first, second):  # a sample's id is its row in the dataset, whatever part was taken
        at = {sample: row for row, sample in enumerate(known.sample)}
        np.testing.assert_array_equal(part.x, known.x[[at[sample] for sample in part.sample]])


def test_extract_embeds_another_partition_by_the_same_backbone(two_halves):
    embedded = open_artifact(two_halves / "e2")
    assert ancestor(embedded, "partition").path == open_artifact(two_halves / "p2").path
    assert ancestor(embedded, "backbone").path == open_artifact(two_halves / "b").path
    assert extract(two_halves / "b", two_halves / "e1", partition=two_halves / "p1").decision == "up to date"


def test_concatenating_all_samples_equals_building_the_whole_datastore(two_halves, tmp_path):
    update_datastore(two_halves / "d", two_halves / "e1", tmp_path / "d", policy="concatenate", first=0.5)
    build_datastore(two_halves / "e1", tmp_path / "whole")
    for actual, expected in zip(samples_by_client(tmp_path / "d"), samples_by_client(tmp_path / "whole"), strict=True):
        order = np.argsort(actual[0])
        for values, known in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(values[order], known)


def test_update_without_new_samples_keeps_the_datastore(two_halves, tmp_path):
    update_datastore(two_halves / "d", two_halves / "e1", tmp_path / "d", first=0.5, last=0.5)
    for actual, expected in zip(samples_by_client(tmp_path / "d"), samples_by_client(two_halves / "d"), strict=True):
        for part, known in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(part, known)


def test_fifo_keeps_its_size_and_finally_contains_only_new_samples(two_halves, tmp_path):
    update_datastore(two_halves / "d", two_halves / "e2", tmp_path / "d1", last=0.1)
    new = embeddings.read(open_artifact(two_halves / "e2"))
    seed = open_artifact(two_halves / "b").manifest.request["seed"]
    before, after = [*samples_by_client(two_halves / "d")], [*samples_by_client(tmp_path / "d1")]
    part = new["train"]
    known = dict(zip(part.sample, part.z, strict=True))
    for client, ((ids, *_), (sample, _, z)) in enumerate(zip(before, after, strict=True)):
        span = slice(part.offsets[client], part.offsets[client + 1])
        size = span.stop - span.start
        first = np.sort(capacities.arrival_order(seed, "train", client, size)[: int(np.ceil(round(0.1 * size, 6)))])
        assert sample.tolist() == [*ids, *part.sample[span][first]][-len(ids) :]
        for row, one in zip(z, sample, strict=True):
            if one in known:
                np.testing.assert_array_equal(row, known[one])
    update_datastore(tmp_path / "d1", two_halves / "e2", tmp_path / "d2", first=0.1)
    for one, other in zip(samples_by_client(two_halves / "d"), samples_by_client(tmp_path / "d2"), strict=True):
        assert len(one[0]) == len(other[0])
    assert {*np.concatenate([sample for sample, *_ in samples_by_client(tmp_path / "d2")])} & {*part.sample}


class Progress(NullReporter):
    """Adds up the steps that each bar shows."""

    def __init__(self):
        self.totals, self.shown = {}, {}

    @contextmanager
    def progress(self, label, total, completed=0):
        self.totals[label], self.shown[label] = total, completed

        def advance(steps, note):
            self.shown[label] += steps

        yield advance


def test_update_datastore_reports_progress_for_all_clients(two_halves, tmp_path):
    progress = Progress()
    update_datastore(two_halves / "d", two_halves / "e2", tmp_path / "d", execution=Execution(reporter=progress))
    assert progress.totals["update-datastore"] == 5
    assert progress.shown == progress.totals


def test_updated_datastore_predicts_the_samples_of_the_new_partition(two_halves, tmp_path):
    outcome = update_datastore(two_halves / "d", two_halves / "e2", tmp_path / "d", policy="fixed")
    assert (outcome.summary["added"], outcome.summary["evicted"]) == (0, 0)
    personalize("knn-per", tmp_path / "d", tmp_path / "knn")
    evaluate([tmp_path / "knn"], tmp_path / "ev")
    known = partitions.read(open_artifact(two_halves / "p2"))
    assert ancestor(open_artifact(tmp_path / "knn"), "partition").path == open_artifact(two_halves / "p2").path
    rows_of_test = (tmp_path / "ev" / "clients.csv").read_text().splitlines()
    assert len(rows_of_test) > len(known.names)


def test_update_datastore_refuses_other_backbones_other_clients_and_compressed_indexes(two_halves, small, tmp_path):
    with pytest.raises(InputError, match="by different backbones"):
        update_datastore(two_halves / "d", small.e, tmp_path / "d")
    partition("writers", tmp_path / "p", scheme="dirichlet", clients=4, part=(2, 2))
    extract(two_halves / "b", tmp_path / "e", partition=tmp_path / "p")
    with pytest.raises(InputError, match=r"differ in their clients: .*client-0004 against client-0000"):
        update_datastore(two_halves / "d", tmp_path / "e", tmp_path / "d")
    build_datastore(two_halves / "e1", tmp_path / "sq", index="SQ8")
    with pytest.raises(InputError, match="type SQ8"):
        update_datastore(tmp_path / "sq", two_halves / "e2", tmp_path / "d")


def test_extract_refuses_samples_of_another_shape(small, tmp_path):
    partition("cifar10", tmp_path / "p", scheme="iid", clients=2, root=write_images(tmp_path))
    with pytest.raises(InputError, match="samples of shape"):
        extract(small.b, tmp_path / "e", partition=tmp_path / "p")


def write_images(folder):
    x = np.zeros((20, 32, 32, 3), np.uint8)
    y = np.arange(20) % 10
    np.savez(folder / "cifar10_12k.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return folder


def read_lambda(path):
    return predictions.read_tuned(open_artifact(path))["lambda"]


def test_lambda_is_tuned_only_on_validation_samples_that_have_arrived(two_halves, tmp_path):
    """Those that a store of that room had, and a tenth of the new ones: nothing from later."""
    update_datastore(two_halves / "d", two_halves / "e2", tmp_path / "u", policy="concatenate", first=0, last=0.1)
    personalize("knn-per", tmp_path / "u", tmp_path / "k", options={"k": 3})
    old, new = (embeddings.read(open_artifact(two_halves / name))["validation"] for name in ("e1", "e2"))
    weight, arrived = read_lambda(tmp_path / "k"), datastore.read_arrived(open_artifact(tmp_path / "u"))
    for client, (_, y, z) in enumerate(samples_by_client(tmp_path / "u")):
        rows = []
        for part, share in ((old, 0.5), (new, 0.1)):
            first, last = part.offsets[client : client + 2]
            rows.append(
                (
                    part,
                    first
                    + capacities.kept_rows(share, capacities.arrival_order(0, "validation", client, last - first)),
                )
            )
        own, logits, label, sample = (
            np.concatenate([getattr(part, name)[at] for part, at in rows]) for name in ("z", "logits", "y", "sample")
        )
        span = slice(*arrived.offsets[client : client + 2])
        assert arrived.sample[span].tolist() == sample.tolist()
        apart = np.sqrt(((own[:, None] - z) ** 2).sum(axis=2))
        near = np.argsort(apart, axis=1)[:, :3]
        share = np.exp(-np.take_along_axis(apart, near, 1))
        knn = np.stack([np.bincount(y[n], s, 10) / s.sum() for n, s in zip(near, share, strict=True)])
        model = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        grid = (0.5, 0.3, 0.7, 0.1, 0.9, 0, 1)
        right = [((lam * knn + (1 - lam) * model).argmax(axis=1) == label).sum() for lam in grid]
        assert weight[client] == grid[int(np.argmax(right))]


def test_fixed_datastore_keeps_its_lambda(two_halves, tmp_path):
    update_datastore(two_halves / "d", two_halves / "e1", tmp_path / "u1", policy="fixed", first=0.5, last=1)
    update_datastore(tmp_path / "u1", two_halves / "e2", tmp_path / "u2", policy="fixed", first=0, last=1)
    for name in ("u1", "u2"):
        personalize("knn-per", tmp_path / name, tmp_path / f"k-{name}")
    np.testing.assert_array_equal(read_lambda(tmp_path / "k-u1"), read_lambda(tmp_path / "k-u2"))
    personalize("knn-per", two_halves / "d", tmp_path / "k")  # stores that are no stream tune on all
    assert len(datastore.read_arrived(open_artifact(tmp_path / "u2")).y) > 0


@pytest.mark.parametrize("policy", ["fifo", "concatenate"])
def test_validation_samples_are_added_and_evicted_like_training_samples(two_halves, tmp_path, policy):
    update_datastore(two_halves / "d", two_halves / "e2", tmp_path / "u", policy=policy, first=0, last=0.5)
    before = [
        capacities.count_kept_rows(0.5, n)
        for n in np.diff(embeddings.read(open_artifact(two_halves / "e1"))["validation"].offsets)
    ]
    come = [
        capacities.count_kept_rows(0.5, n)
        for n in np.diff(embeddings.read(open_artifact(two_halves / "e2"))["validation"].offsets)
    ]
    sizes = np.diff(datastore.read_arrived(open_artifact(tmp_path / "u")).offsets).tolist()
    assert sizes == (before if policy == "fifo" else [a + b for a, b in zip(before, come, strict=True)])
