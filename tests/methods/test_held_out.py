"""Validation samples are predicted with choices that were made without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import worlds
from pflcli.artifacts.kinds.partition import read_sizes
from pflcli.artifacts.open_by_path import open_one
from pflcli.commands.partition import partition
from pflcli.core import methods
from pflcli.core.knn.embedded import Embedded
from pflcli.core.settings import Settings
from pflcli.methods.parts import choice_samples
from pflcli.methods.parts.folds import FOLDS, Folds, per_sample
from pflcli.plugins.checks.laws.federations import MANY_PREDICTED, replace_labels
from pflcli.workflow.training import notices

CHOOSING = [
    ("knn-per", {"k": 3}),
    ("knn-per", {"k": 3, "grid": (0.0, 1.0)}),
    ("knn-per", {"k": 5, "cross_validate": 99}),
    ("knn-per-extended", {"k": 3, "representation": "auto", "distance": "auto"}),
    ("knn-per-plus", {"k": 3, "distance": "auto"}),
    ("knn-peers", {"grid": (0.0, 1.0)}),
    ("gaussian-head", {}),
    ("fedham", {"self_share": 0.3, "warmup": 1}),
]


def without_fold(data, fold):
    """Return the federation whose test samples are the validation samples of a fold, which validation samples lack.

    Also return which validation samples these are.
    """
    rows, sizes, moved = [], [], []
    for client in data.clients:
        train, validation = data.rows(client, "train"), data.rows(client, "validation")
        in_fold = np.arange(len(validation)) % FOLDS == fold
        rows += [train, validation[~in_fold], validation[in_fold]]
        sizes += [len(train), (~in_fold).sum(), in_fold.sum()]
        moved.append(in_fold)
    order = torch.from_numpy(np.concatenate(rows))
    other = replace(data, x=data.x[order], y=data.y[order], offsets=np.cumsum([0, *sizes]))
    return other, np.concatenate(moved)


@pytest.mark.parametrize(("method", "options"), CHOOSING, ids=lambda value: str(value))
def test_a_fold_is_predicted_like_test_samples_of_clients_without_these_samples(method, options):
    data = worlds.federation(client_sizes=MANY_PREDICTED)
    labels = np.random.default_rng(1).integers(0, worlds.CLASSES, data.sizes("validation").sum())
    data = replace_labels(data, "validation", labels)  # so that few samples decide
    run = worlds.run(method, options=options, data=data, lr=0.3)
    actual = worlds.answers(method, run, worlds.play(method, run))["validation"]
    chosen = []
    for fold in range(FOLDS):
        other, moved = without_fold(data, fold)
        run = worlds.run(method, options=options, data=other, lr=0.3)
        state = worlds.play(method, run)
        expected = worlds.answers(method, run, state)["test"]
        np.testing.assert_allclose(actual[moved], expected, atol=2e-6)
        chosen.append(np.concatenate([*worlds.tuned(method, run, state).values()]))
    assert any((each != chosen[0]).any() for each in chosen)  # or the folds would not differ


def test_folds_are_the_positions_of_samples_and_sums_leave_one_out():
    folds = Folds.divide(np.asarray([0, 7, 7, 9]))
    assert folds.number.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1]
    total, apart = folds.sum(np.arange(9) + 1)
    assert total.tolist() == [28, 0, 17]
    assert apart.tolist() == [[28 - 7, 28 - 9, 28 - 3, 28 - 4, 28 - 5], [0] * 5, [9, 8, 17, 17, 17]]
    outside = replace(folds, number=np.where(np.arange(9) == 8, -1, folds.number))
    assert outside.sum(np.arange(9) + 1)[1][2].tolist() == [9, 17, 17, 17, 17]  # a sample in no fold is in all sums
    assert per_sample("validation", np.asarray([0, 1, 3]), np.zeros(2), np.arange(10).reshape(2, 5)).tolist() == [
        0,
        5,
        6,
    ]
    assert per_sample("test", np.asarray([0, 1, 3]), np.asarray([4, 5]), np.zeros((2, 5))).tolist() == [4, 5, 5]


def test_arrived_samples_are_left_out_with_the_equal_validation_samples():
    draw = np.random.default_rng(0)
    z = draw.normal(size=(6, 2)).astype(np.float32)
    y, logits = np.zeros(6, np.int64), np.zeros((6, 2), np.float32)
    validation = Embedded(z, logits, y, np.asarray([0, 4, 6]))
    earlier = draw.normal(size=(1, 2)).astype(np.float32)
    arrived = Embedded(np.concatenate([earlier, z[[2, 5]], z[[0]]]), logits[:4], y[:4], np.asarray([0, 2, 4]))
    folds = choice_samples._divide_arrived(validation, arrived)
    assert folds.number.tolist() == [-1, 2, 1, -1]  # the last is equal to a sample of the other client


def test_a_run_says_how_many_clients_have_a_single_validation_sample(tmp_path):
    partition("writers", tmp_path / "p", fractions=(0.9, 0.05, 0.05))
    artifact = open_one(tmp_path / "p", "partition")
    single = int((read_sizes(artifact)[:, 1] == 1).sum())
    assert single

    def describe(name, settings, **options):
        method = methods.load(name)
        return [*notices.describe_lone_samples(name, method, method.Config(**options), settings, artifact)]

    (line,) = describe("gaussian-head", Settings())
    assert line.startswith(f"gaussian-head: {single} clients with a single validation sample")
    assert describe("gaussian-head", Settings(), temperature=1.0) == describe("fedavg", Settings()) == []
    assert describe("gaussian-head", Settings(refit=True)) == describe("ditto", Settings()) == []
