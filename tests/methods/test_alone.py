"""Alone: its classifiers against scikit-learn and by hand, its choice, and clients with few samples or classes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import worlds
from pflcli.artifacts.reader import open_artifact
from pflcli.core import methods, rng
from pflcli.core.engine.federation import Federation
from pflcli.core.errors import UnsuitedError
from pflcli.evaluation.stored_comparison import read_comparison
from pflcli.methods.parts import classifiers

DRAW = rng.generator(0, "test")


def draw_samples(n, d, classes=3, seed=0):
    """Noisy classes in d dimensions, whose features differ in mean and deviation, with labels (n,)."""
    draw = np.random.default_rng(seed)
    y = np.resize(np.arange(classes), n)
    x = draw.normal(size=(n, d)) + draw.normal(size=(n, 1)) + 1.5 * np.eye(classes, d)[y]
    return (5 + x * np.linspace(0.5, 3, d)).astype(np.float32), y


def make_run(method, client_sizes, x, y, classes, **options):
    offsets = np.cumsum([0, *np.ravel(client_sizes)])
    data = Federation.from_blocks(x, y, offsets, classes)
    return worlds.run(method, data=data, options=options)


@pytest.mark.parametrize("shape", [(40, 6), (12, 30)])
def test_logistic_regression_equals_that_of_scikit_learn_with_fewer_samples_than_features_too(shape):
    x, y = draw_samples(*shape)
    new, _ = draw_samples(9, shape[1], seed=1)
    scaler = StandardScaler().fit(x.astype(float))
    expected = LogisticRegression(tol=1e-8, max_iter=3000).fit(scaler.transform(x), y)
    actual = classifiers.fit(x, y, 3, "logistic", DRAW)(new)
    np.testing.assert_allclose(actual, expected.predict_proba(scaler.transform(new)), atol=2e-3)


@pytest.mark.parametrize("shape", [(40, 6), (12, 30)])
def test_lda_through_the_span_of_the_samples_equals_that_of_scikit_learn_at_its_shrinkage(shape):
    x, y = draw_samples(*shape)
    new, _ = draw_samples(9, shape[1], seed=1)
    scaler = StandardScaler().fit(x.astype(float))
    z = scaler.transform(x)
    rest = z - np.stack([z[y == label].mean(axis=0) for label in range(3)])[y]
    shrinkage = ledoit_wolf_shrinkage(rest, assume_centered=True)
    assert 0 < shrinkage < 1
    assert classifiers.shrink(rest, shape[1]) == pytest.approx(shrinkage)
    expected = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(z, y)
    actual = classifiers.fit(x, y, 3, "lda", DRAW)(new)
    np.testing.assert_allclose(actual, expected.predict_proba(scaler.transform(new)), atol=1e-5)


def test_lda_without_two_samples_of_a_class_takes_the_nearest_mean():
    x = np.asarray([[0, 0], [4, 0], [0, 4]], np.float32)
    actual = classifiers.fit(x, np.arange(3), 3, "lda", DRAW)(x + np.float32(0.5))
    assert actual.argmax(axis=1).tolist() == [0, 1, 2]


def test_forest_is_that_of_scikit_learn_on_pixels():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 255, (30, 1, 4, 4)).astype(np.uint8), np.resize([0, 2], 30)
    x[y == 2, :, :2] //= 2
    seed = int(rng.generator(0, "f").integers(2**31))
    forest = RandomForestClassifier(100, random_state=seed).fit((x.reshape(30, -1) / 255).astype(np.float32), y)
    expected = np.insert(forest.predict_proba((x.reshape(30, -1) / 255).astype(np.float32)), 1, 0, axis=1)
    actual = classifiers.fit(x, y, 3, "forest", rng.generator(0, "f"))(x)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert 0 < actual[:, 1].max() < 1e-5  # a class that is not in training


def test_the_classifier_that_is_right_most_often_in_cross_validation_is_chosen():
    """Diagonal quarters of a plane, which no line separates; and a line across many directions of noise."""
    draw = np.random.default_rng(0)
    quarters = draw.uniform(-1, 1, (150, 2)).astype(np.float32)
    y = (quarters.prod(axis=1) > 0).astype(np.int64)
    chosen = classifiers.fit(quarters, y, 2, "choose", rng.generator(0, "c"))(quarters).argmax(axis=1)
    assert (chosen == y).mean() > 0.95
    assert (classifiers.fit(quarters, y, 2, "logistic", DRAW)(quarters).argmax(axis=1) == y).mean() < 0.75
    line = draw.normal(size=(60, 40)).astype(np.float32)
    y = (line.sum(axis=1) > 0).astype(np.int64)
    linear = [classifiers.fit(line, y, 2, name, DRAW)(line) for name in ("logistic", "lda")]
    picked = classifiers.fit(line, y, 2, "choose", rng.generator(0, "c"))(line)
    assert min(np.abs(picked - each).max() for each in linear) < 1e-6


def test_the_choice_of_each_client_is_stored(tmp_path):
    """Diagonal quarters of a plane need a forest; a line across many directions of noise does not."""
    draw = np.random.default_rng(0)
    quarters = np.pad(draw.uniform(-1, 1, (150, 2)), ((0, 0), (0, 38)))
    line = draw.normal(size=(60, 40))
    y = np.concatenate([quarters[:, :2].prod(axis=1) > 0, line.sum(axis=1) > 0]).astype(np.int64)
    x = np.concatenate([quarters, line]).astype(np.float32)
    sizes = [(150, 0, 0), (60, 0, 0)]
    chosen = worlds.tuned("alone", make_run("alone", sizes, x, y, 2), {})
    assert {*chosen} == {"logistic", "lda", "forest"}
    assert np.sum([*chosen.values()], axis=0).tolist() == [1, 1]
    assert chosen["forest"].tolist() == [1, 0]
    assert worlds.tuned("alone", make_run("alone", sizes, x, y, 2, model="lda"), {}) == {}
    together = worlds.tuned("alone-pooled", make_run("alone-pooled", sizes, x, y, 2), {})
    assert sorted(values.tolist() for values in together.values()) == [[0, 0], [0, 0], [1, 1]]


def test_the_choice_of_each_client_is_shown_and_is_no_choice_on_validation_samples(pfl, small, tmp_path):
    assert pfl("personalize", "alone", small.p, "-o", tmp_path / "alone").code == 0
    shown = pfl("show", tmp_path / "alone").out
    assert {"logistic", "lda", "forest"} <= {*shown.split()}
    shares = open_artifact(tmp_path / "alone").manifest.summary["tuned"]
    assert sum(each["mean"] for each in shares.values()) == pytest.approx(1)
    words = ("--coverage", 0.9)
    assert pfl("evaluate", tmp_path / "alone", small.fedavg, "-o", tmp_path / "e", *words).code == 0
    rows = [row for row in csv.DictReader((tmp_path / "e" / "clients.csv").open()) if row["method"] == "alone"]
    assert len(rows) == 6
    assert all(sum(float(row[name]) for name in ("logistic", "lda", "forest")) == 1 for row in rows)
    sets = json.loads((tmp_path / "e" / "metrics.json").read_text())["sets"]["methods"]
    assert "chose_on_validation" not in sets["alone"]
    assert not read_comparison(open_artifact(tmp_path / "e")).clients.tuned


def test_classes_are_dealt_to_all_folds():
    """Each of three folds has a sample of each class, so that separate classes are right when they are left out."""
    y = np.repeat(np.arange(4), 3)
    x = (100 * np.eye(4, dtype=np.float32))[y]
    right = classifiers._cross_validate(classifiers._fit_forest, x, y, 4, np.random.default_rng(0))
    assert right == len(y)


def test_tokens_are_counted_and_those_that_training_lacks_are_left_out():
    known = np.asarray([2, 5, 7])
    counts = classifiers._count_tokens(known, np.asarray([[5, 5, 2], [9, 7, 0]], np.int16))
    assert counts.tolist() == [[1, 2, 0], [0, 0, 1]]
    tokens = np.asarray([[1, 1, 2]] * 5 + [[2, 1, 2]] * 5, np.int16)
    y = np.repeat([0, 1], 5)
    predict = classifiers.fit(tokens, y, 2, "choose", rng.generator(0, "t"))
    assert predict(np.asarray([[1, 2, 1], [2, 2, 8]], np.int16)).argmax(axis=1).tolist() == [0, 1]


def test_clients_with_one_class_two_samples_or_none_follow_the_stated_rules():
    x, y = draw_samples(12, 5)
    run = make_run("alone", [(4, 0, 1), (2, 0, 2), (0, 0, 2), (1, 0, 0)], x, np.where(np.arange(12) < 4, 1, y), 3)
    p = worlds.answers("alone", run, {})["test"]
    assert p[0, 1] > 0.99999
    assert len(p) == 5
    np.testing.assert_allclose(p[3:], 1 / 3, atol=1e-6)
    assert np.isfinite(np.log(p)).all()
    two = replace(run, cfg=replace(run.cfg, model="logistic"))
    np.testing.assert_array_equal(worlds.answers("alone", two, {})["test"][1:3], p[1:3])


def test_boosting_is_by_name_and_refused_for_more_than_a_hundred_features():
    x, y = draw_samples(60, 6)
    assert (classifiers.fit(x, y, 3, "boosting", DRAW)(x).argmax(axis=1) == y).mean() > 0.9
    with pytest.raises(UnsuitedError, match="at most 100 features, and a sample has 101") as error:
        classifiers.fit(draw_samples(9, 101)[0], y[:9], 3, "boosting", DRAW)
    assert "--set model=choose" in str(error.value.fix)


def test_alone_sends_nothing_and_pooled_the_samples_of_all_participants():
    run = worlds.run("alone")
    worlds.answers("alone", run, {})
    assert run.traffic == {"up": 0, "down": 0, "peer": 0}
    run = worlds.run("alone-pooled")
    methods.load("alone-pooled").setup(run)
    rows = run.federation.rows_of(run.federation.participants, "train")
    sent = run.federation.x[rows].nbytes + run.federation.y[rows].nbytes
    assert run.traffic == {"up": sent, "down": 0, "peer": 0}


@pytest.mark.parametrize("refit", [False, True])
def test_alone_pooled_predicts_for_all_clients_with_a_classifier_of_the_samples_of_those_that_are_not_new(refit):
    data = worlds.federation()
    data = replace(data, new=np.arange(len(data.clients)) == 0)
    run = worlds.run("alone-pooled", data=data, refit=refit, options={"model": "logistic"})
    splits = ("train", "validation") if refit else ("train",)
    rows = np.concatenate([data.rows(client, *splits) for client in data.clients[1:]])
    scaler = StandardScaler().fit(data.x[rows].double().numpy())
    model = LogisticRegression(tol=1e-8, max_iter=3000).fit(scaler.transform(data.x[rows]), data.y[rows])
    x = np.concatenate([data.x[data.block(client, "test")].numpy() for client in data.clients])
    actual = worlds.answers("alone-pooled", run, methods.load("alone-pooled").setup(run))["test"]
    np.testing.assert_allclose(actual, model.predict_proba(scaler.transform(x)), atol=2e-3)
