"""Stores that take up new samples: what each policy keeps, in which order, and what cannot be."""

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
from pflcli.commands.update_datastore import Rows, merge, update_datastore
from pflcli.errors import InputError
from pflcli.execution import Execution
from pflcli.knn import capacity as capacities
from pflcli.knn.indexes import flat_vectors
from pflcli.reporter import NullReporter

SAMPLES = ("y", "sample")


def rows(*ids):
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
def test_what_a_store_keeps(policy, distinct, expected, added):
    actual, count = merge(rows(1, 3, 4), rows(4, 8), policy, distinct=distinct)
    assert (actual.sample.tolist(), count) == (expected, added)
    np.testing.assert_array_equal(actual.z[:, 0], actual.sample)
    np.testing.assert_array_equal(actual.y, actual.sample % 3)


def test_a_store_that_more_comes_to_than_it_holds_keeps_the_newest():
    assert merge(rows(1, 2), rows(5, 6, 7), "fifo", distinct=True)[0].sample.tolist() == [6, 7]


@pytest.fixture(scope="module")
def shift(tmp_path_factory):
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
    """Return a store's samples and vectors by client, training rows and validation rows apart."""
    packed = datastore.read(open_artifact(path))
    for client, train in enumerate(packed.train):
        span = slice(packed.offsets[client], packed.offsets[client + 1])
        z = flat_vectors(packed.blob[packed.bytes[client] : packed.bytes[client + 1]])
        sample, y = packed.sample[span], packed.y[span]
        yield (sample[:train], y[:train], z[:train]), (sample[train:], y[train:], z[train:])


def test_parts_share_no_sample_and_leave_none_out(shift):
    first, second = (partitions.read(open_artifact(shift / name)) for name in ("p1", "p2"))
    assert not set(first.sample) & set(second.sample)
    undivided = partition("writers", shift / "whole", scheme="iid", clients=1)
    known = partitions.read(open_artifact(undivided.path))
    assert set(first.sample) | set(second.sample) == set(known.sample)
    for part in (first, second):  # a sample's id is its row in the dataset, whatever part was taken
        at = {sample: row for row, sample in enumerate(known.sample)}
        np.testing.assert_array_equal(part.x, known.x[[at[sample] for sample in part.sample]])


def test_another_partition_is_embedded_by_the_same_backbone(shift):
    embedded = open_artifact(shift / "e2")
    assert ancestor(embedded, "partition").path == open_artifact(shift / "p2").path
    assert ancestor(embedded, "backbone").path == open_artifact(shift / "b").path
    assert extract(shift / "b", shift / "e1", partition=shift / "p1").decision == "up to date"


def test_growing_to_the_whole_is_building_the_whole(shift, tmp_path):
    update_datastore(shift / "d", shift / "e1", tmp_path / "d", policy="concatenate", first=0.5)
    build_datastore(shift / "e1", tmp_path / "whole")
    for actual, expected in zip(samples_by_client(tmp_path / "d"), samples_by_client(tmp_path / "whole"), strict=True):
        for (sample, y, z), (ids, labels, vectors) in zip(actual, expected, strict=True):
            order = np.argsort(sample)
            np.testing.assert_array_equal(sample[order], ids)
            np.testing.assert_array_equal(y[order], labels)
            np.testing.assert_array_equal(z[order], vectors)


def test_nothing_may_arrive(shift, tmp_path):
    update_datastore(shift / "d", shift / "e1", tmp_path / "d", first=0.5, last=0.5)
    for actual, expected in zip(samples_by_client(tmp_path / "d"), samples_by_client(shift / "d"), strict=True):
        for part, known in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
            np.testing.assert_array_equal(part, known)


def test_fifo_keeps_its_size_and_ends_with_the_new_samples_alone(shift, tmp_path):
    update_datastore(shift / "d", shift / "e2", tmp_path / "d1", last=0.1)
    new = embeddings.read(open_artifact(shift / "e2"))
    seed = open_artifact(shift / "b").manifest.request["seed"]
    before, after = [*samples_by_client(shift / "d")], [*samples_by_client(tmp_path / "d1")]
    for client, (old, now) in enumerate(zip(before, after, strict=True)):
        for split, (ids, *_), (sample, _, z) in zip(("train", "validation"), old, now, strict=True):
            part = new[split]
            span = slice(part.offsets[client], part.offsets[client + 1])
            size = span.stop - span.start
            first = np.sort(capacities.arrival_order(seed, split, client, size)[: int(np.ceil(round(0.1 * size, 6)))])
            expected = [*ids, *part.sample[span][first]][-len(ids) :] if len(ids) else []
            assert sample.tolist() == list(expected)
            known = dict(zip(part.sample, part.z, strict=True))
            for row, one in zip(z, sample, strict=True):
                if one in known:
                    np.testing.assert_array_equal(row, known[one])
    update_datastore(tmp_path / "d1", shift / "e2", tmp_path / "d2", first=0.1)
    for (one, _), (other, _) in zip(samples_by_client(shift / "d"), samples_by_client(tmp_path / "d2"), strict=True):
        assert len(one[0]) == len(other[0])
    assert {*np.concatenate([train[0] for train, _ in samples_by_client(tmp_path / "d2")])} & {*new["train"].sample}


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


def test_the_progress_ends_when_all_clients_have_their_stores(shift, tmp_path):
    progress = Progress()
    update_datastore(shift / "d", shift / "e2", tmp_path / "d", execution=Execution(reporter=progress))
    assert progress.totals["update-datastore"] == 5
    assert progress.shown == progress.totals


def test_it_is_the_new_samples_that_are_answered(shift, tmp_path):
    outcome = update_datastore(shift / "d", shift / "e2", tmp_path / "d", policy="fixed")
    assert (outcome.summary["added"], outcome.summary["evicted"]) == (0, 0)
    personalize("knn-per", tmp_path / "d", tmp_path / "knn")
    evaluate([tmp_path / "knn"], tmp_path / "ev")
    known = partitions.read(open_artifact(shift / "p2"))
    assert ancestor(open_artifact(tmp_path / "knn"), "partition").path == open_artifact(shift / "p2").path
    rows_of_test = (tmp_path / "ev" / "clients.csv").read_text().splitlines()
    assert len(rows_of_test) > len(known.names)


def test_other_backbones_other_clients_and_compressed_stores_are_refused(shift, small, tmp_path):
    with pytest.raises(InputError, match="by different backbones"):
        update_datastore(shift / "d", small.e, tmp_path / "d")
    partition("writers", tmp_path / "p", scheme="dirichlet", clients=4, part=(2, 2))
    extract(shift / "b", tmp_path / "e", partition=tmp_path / "p")
    with pytest.raises(InputError, match=r"differ in their clients: .*client-0004 against client-0000"):
        update_datastore(shift / "d", tmp_path / "e", tmp_path / "d")
    build_datastore(shift / "e1", tmp_path / "sq", index="SQ8")
    with pytest.raises(InputError, match="type SQ8"):
        update_datastore(tmp_path / "sq", shift / "e2", tmp_path / "d")


def test_samples_of_another_shape_are_not_embedded(small, tmp_path):
    partition("cifar10", tmp_path / "p", scheme="iid", clients=2, root=images(tmp_path))
    with pytest.raises(InputError, match="samples of shape"):
        extract(small.b, tmp_path / "e", partition=tmp_path / "p")


def images(folder):
    x = np.zeros((20, 32, 32, 3), np.uint8)
    y = np.arange(20) % 10
    np.savez(folder / "cifar10_12k.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return folder


def tuned(path):
    return predictions.read_tuned(open_artifact(path))["lambda"]


def test_lambda_is_tuned_on_the_validation_samples_that_have_arrived(shift, tmp_path):
    """Those that a store of that room had, and a tenth of the new ones: nothing from later."""
    update_datastore(shift / "d", shift / "e2", tmp_path / "u", policy="concatenate", first=0, last=0.1)
    personalize("knn-per", tmp_path / "u", tmp_path / "k", options={"k": 3})
    old, new = (embeddings.read(open_artifact(shift / name))["validation"] for name in ("e1", "e2"))
    weight, arrived = tuned(tmp_path / "k"), datastore.read_arrived(open_artifact(tmp_path / "u"))
    for client, ((_, y, z), _) in enumerate(samples_by_client(tmp_path / "u")):
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


def test_a_store_that_adds_nothing_keeps_its_lambda(shift, tmp_path):
    update_datastore(shift / "d", shift / "e1", tmp_path / "u1", policy="fixed", first=0.5, last=1)
    update_datastore(tmp_path / "u1", shift / "e2", tmp_path / "u2", policy="fixed", first=0, last=1)
    for name in ("u1", "u2"):
        personalize("knn-per", tmp_path / name, tmp_path / f"k-{name}")
    np.testing.assert_array_equal(tuned(tmp_path / "k-u1"), tuned(tmp_path / "k-u2"))
    personalize("knn-per", shift / "d", tmp_path / "k")  # stores that are no stream tune on all
    assert len(datastore.read_arrived(open_artifact(tmp_path / "u2")).y) > 0


@pytest.mark.parametrize("policy", ["fifo", "concatenate"])
def test_validation_samples_come_and_go_as_training_samples_do(shift, tmp_path, policy):
    update_datastore(shift / "d", shift / "e2", tmp_path / "u", policy=policy, first=0, last=0.5)
    before = [
        capacities.count_kept_rows(0.5, n)
        for n in np.diff(embeddings.read(open_artifact(shift / "e1"))["validation"].offsets)
    ]
    come = [
        capacities.count_kept_rows(0.5, n)
        for n in np.diff(embeddings.read(open_artifact(shift / "e2"))["validation"].offsets)
    ]
    sizes = np.diff(datastore.read_arrived(open_artifact(tmp_path / "u")).offsets).tolist()
    assert sizes == (before if policy == "fifo" else [a + b for a, b in zip(before, come, strict=True)])
