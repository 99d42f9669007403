"""``pfl extract --layer``: the output of a named layer represents a sample in all later commands."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from pflcli.artifacts.kinds import embeddings, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import read_tensors
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.personalize import personalize
from pflcli.commands.predict import predict
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.plugins.export.export import export
from pflcli.plugins.knn_tools.sweep import sweep

LAYER = "body.1"  # the first linear layer of the mlp, before its activation


@pytest.fixture(scope="module")
def by_layer(small, tmp_path_factory):
    """Embeddings by the layer, their stores, and the predictions of kNN-Per with these."""
    at = tmp_path_factory.mktemp("layer")
    extract(small.b, at / "e", layer=LAYER)
    build_datastore(at / "e", at / "d")
    personalize("knn-per", at / "d", at / "k", options={"k": 3, "weight": 0.7})
    return at


def test_extract_stores_the_output_of_the_layer_and_the_same_logits(small, by_layer):
    stored, plain = (embeddings.read(open_artifact(path)) for path in (by_layer / "e", small.e))
    weights = {name: value.numpy() for name, value in read_tensors(open_artifact(small.b)).items()}
    data = partitions.read(open_artifact(small.p))
    for split in ("train", "validation", "test"):
        order = {int(sample): row for row, sample in enumerate(data.sample)}
        x = data.x[[order[int(sample)] for sample in stored[split].sample]].reshape(len(stored[split].y), -1) / 255
        expected = x @ weights["body.1.weight"].T + weights["body.1.bias"]
        np.testing.assert_allclose(stored[split].z, expected, atol=1e-4)
        np.testing.assert_array_equal(stored[split].logits, plain[split].logits)
    assert (stored["train"].z < 0).any()  # a representation after the activation has no negative numbers


def test_extract_names_the_layers_when_there_is_none_of_that_name(small, tmp_path):
    with pytest.raises(UsageError) as error:
        extract(small.b, tmp_path / "e", layer="body.9")
    assert "no layer 'body.9'" in str(error.value)
    assert "body.0, body.1, body.2, body.3, body.4, head" in " ".join(error.value.fix)
    assert not (tmp_path / "e").exists()


def test_predict_searches_the_layer_for_new_samples(small, by_layer, tmp_path):
    data, answers = partitions.read(open_artifact(small.p)), predictions.read(open_artifact(by_layer / "k"), "test")
    client = int(np.flatnonzero(np.diff(answers.offsets) > 0)[0])
    first, last = data.offsets[3 * client + 2 : 3 * client + 4]
    np.save(tmp_path / "x.npy", data.x[first:last])
    rows = predict(by_layer / "k", tmp_path / "x.npy", client=data.names[client]).p
    begin, end = answers.offsets[client : client + 2]
    np.testing.assert_allclose(rows, answers.parts["p"][begin:end], atol=1e-5)


def test_sweep_searches_the_layer(by_layer, tmp_path):
    sweep(by_layer / "e", tmp_path / "s", k=(3,), sigma=(1.0,), weight=(0.7,), capacity=(1.0,))
    with (tmp_path / "s" / "table.csv").open() as file:
        (row,) = (each for each in csv.DictReader(file) if each["lambda"] == "0.7")
    answers = predictions.read(open_artifact(by_layer / "k"), "test")
    right = (answers.parts["p"].argmax(axis=1) == answers.y).mean()
    assert float(row["accuracy"]) == pytest.approx(right, abs=1e-6)


def test_commands_that_need_the_input_of_the_head_refuse_another_layer(small, by_layer, tmp_path):
    with pytest.raises(UnsuitedError, match="another layer"):
        personalize("knn-per-extended", by_layer / "d", tmp_path / "k", options={"representation": "logits"})
    name = partitions.read(open_artifact(small.p)).names[0]
    with pytest.raises(InputError, match=r"by the layer body\.1"):
        export(by_layer / "k", tmp_path / "x", client=name)


def test_layer_with_another_number_of_rows_is_refused():
    from types import SimpleNamespace

    from pflcli.core.federation.layers import represent_by_layer

    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Unflatten(0, (1, -1)), torch.nn.Flatten(0, 1))
    federation = SimpleNamespace(y=torch.zeros(2), inputs=lambda rows: torch.ones(len(rows), 2))
    engine = SimpleNamespace(divide=lambda rows, size: [rows])
    run = SimpleNamespace(network=network, backbone=network.state_dict(), federation=federation, engine=engine)
    assert represent_by_layer(run, np.arange(2), "0").shape == (2, 3)
    with pytest.raises(UsageError, match="does not compute one output per sample"):
        represent_by_layer(run, np.arange(2), "1")
