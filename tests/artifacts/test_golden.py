"""Artifacts of every schema version can be read, and evaluations of them give the same scores."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from pflcli.artifacts import kinds
from pflcli.artifacts.kinds import dataset, datastore, embeddings, partition, predictions
from pflcli.artifacts.kinds.backbone import read_tensors
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.commands.personalize import personalize
from pflcli.commands.show import show
from pflcli.core.knn.stores import Stores
from pflcli.core.settings import ADDED, Settings

VERSIONS = sorted((Path(__file__).parents[1] / "golden").glob("schema-*"))


def test_golden_artifacts_exist_for_every_schema_version():
    assert [path.name for path in VERSIONS] == [f"schema-{n + 1}" for n in range(max(kinds.schemas().values()))]


@pytest.mark.parametrize("at", VERSIONS, ids=lambda path: path.name)
def test_golden_artifacts_of_every_kind_are_verified_and_read(at):
    for kind in kinds.schemas():
        assert show(at / kind, lineage=True, verify=True)["kind"] == kind
    stored = partition.read(open_artifact(at / "partition"))
    assert stored.sizes.sum() == 80
    assert set(read_tensors(open_artifact(at / "backbone"))) >= {"head.weight", "body.1.weight"}
    own = dataset.read(open_artifact(at / "dataset"))
    assert (own.features, own.classes, own.x.shape, set(own.owner)) == (
        ("height", "age"),
        ["no", "yes"],
        (12, 2),
        {*"ab"},
    )
    z = embeddings.read(open_artifact(at / "embeddings"))["test"]
    packed = datastore.read(open_artifact(at / "datastore"))
    stores = Stores(packed.blob, packed.bytes, packed.y, packed.offsets)
    neighbours = stores.search(range(4), z.z, z.offsets, 2)
    assert np.isfinite(neighbours.distance).any()


@pytest.mark.parametrize("at", VERSIONS, ids=lambda path: path.name)
def test_settings_that_golden_requests_lack_are_named_as_added(at):
    """Otherwise the artifacts of that release would be out of date."""
    recorded = open_artifact(at / "backbone").manifest.request["settings"]
    assert {field.name for field in fields(Settings)} - {*recorded} <= ADDED


@pytest.mark.parametrize("at", VERSIONS, ids=lambda path: path.name)
def test_golden_predictions_have_the_stored_scores(at, tmp_path):
    evaluate([at / "predictions"], tmp_path / "e")
    old, new = (json.loads((path / "metrics.json").read_text()) for path in (at / "evaluation", tmp_path / "e"))
    for name, metric in old["methods"][0]["metrics"].items():
        assert new["methods"][0]["metrics"][name]["value"] == pytest.approx(metric["value"]), name


@pytest.mark.parametrize("at", VERSIONS, ids=lambda path: path.name)
def test_golden_datastore_gives_the_stored_predictions(at, tmp_path):
    personalize("knn-per", at / "datastore", tmp_path / "p", options={"k": 3})
    old, new = (predictions.read(open_artifact(path), "validation") for path in (at / "predictions", tmp_path / "p"))
    np.testing.assert_allclose(new.parts["p"], old.parts["p"], atol=1e-5)
