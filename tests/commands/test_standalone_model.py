"""The parts of a client's model, combined by hand, give its predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import error_text
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.personalize import personalize
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.plugins.export import standalone_model
from pflcli.plugins.export.standalone_model import build_standalone_model
from pflcli.workflow.prediction import reopened_run

ONE = Execution(threads=1)


def compute_outputs(network, x):
    """Return logits and representations of images (n, 28, 28)."""
    with torch.no_grad():
        z = network.body(torch.from_numpy(x)[:, None].float() / 255)
        return network.head(z), z.numpy()


def test_standalone_model_of_knn_per_is_a_network_and_a_store(small):
    artifact, data = open_artifact(small.knn), partitions.read(open_artifact(small.p))
    one = build_standalone_model(reopened_run.reopen(artifact, None), 2, ONE)
    logits, z = compute_outputs(one.networks[0], data.x[slice(*data.offsets[8:10])])
    model = torch.softmax(logits.double(), dim=1).numpy()
    store = one.neighbours.store
    distance = np.linalg.norm(z[:, None] - store.z, axis=2)
    nearest = np.argsort(distance, axis=1)[:, : one.neighbours.k]
    weight = np.exp(-np.take_along_axis(distance, nearest, axis=1))
    votes = np.stack([(weight * (store.y[nearest] == c)).sum(axis=1) for c in range(10)], axis=1)
    lam = one.neighbours.weight
    p = lam * votes / votes.sum(axis=1, keepdims=True) + (1 - lam) * model
    split = predictions.read(artifact, "test")
    np.testing.assert_allclose(p, split.parts["p"][slice(*split.offsets[2:4])], atol=1e-5)
    assert one.classes == tuple("0123456789")
    assert one.client == data.names[2]


def test_standalone_model_of_a_personal_model_is_one_network(small, tmp_path):
    personalize("fedper", small.p, tmp_path / "m", settings={"model": "mlp", "rounds": 1}, execution=ONE)
    artifact, data = open_artifact(tmp_path / "m"), partitions.read(open_artifact(small.p))
    one = build_standalone_model(reopened_run.reopen(artifact, None), 2, ONE)
    logits, _ = compute_outputs(one.networks[0], data.x[slice(*data.offsets[8:10])])
    split = predictions.read(artifact, "test")
    expected = split.parts["p"][slice(*split.offsets[2:4])]
    np.testing.assert_allclose(torch.softmax(logits, dim=1).numpy(), expected, atol=1e-5)
    assert (one.neighbours, one.pixels, one.shares) == (None, None, (1.0,))


def test_standalone_model_is_refused_when_training_diverged(small, tmp_path, monkeypatch):
    personalize("local", small.p, tmp_path / "m", settings={"model": "logistic", "rounds": 1}, execution=ONE)
    predict_client = standalone_model.stored_predictor.predict_client

    def diverged(*arguments):
        answers, model = predict_client(*arguments)
        return {split: replace(answer, remarks=("training diverged",)) for split, answer in answers.items()}, model

    monkeypatch.setattr(standalone_model.stored_predictor, "predict_client", diverged)
    with pytest.raises(InputError) as error:
        build_standalone_model(reopened_run.reopen(open_artifact(tmp_path / "m"), None), 0, ONE)
    assert "has no sound model: training diverged" in error_text(error)


def test_standalone_model_contains_the_pixel_normalization(small, tmp_path):
    settings = {"model": "logistic", "rounds": 1, "normalize": "dataset"}
    personalize("local", small.p, tmp_path / "m", settings=settings, execution=ONE)
    artifact, data = open_artifact(tmp_path / "m"), partitions.read(open_artifact(small.p))
    one = build_standalone_model(reopened_run.reopen(artifact, None), 1, ONE)
    mean, deviation = (value.item() for value in one.pixels)
    x = torch.from_numpy(data.x[slice(*data.offsets[5:7])])[:, None].float() / 255
    with torch.no_grad():
        p = torch.softmax(one.networks[0]((x - mean) / deviation), dim=1).numpy()
    split = predictions.read(artifact, "test")
    np.testing.assert_allclose(p, split.parts["p"][slice(*split.offsets[1:3])], atol=1e-5)
