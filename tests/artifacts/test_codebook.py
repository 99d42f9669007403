"""Codebooks: artifacts keep the names of clients, classes and features, and different codebooks are not combined."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pflcli.artifacts import codebook
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.codebook import Codebook, Encoder
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.show import show
from pflcli.commands.train_global import train_global
from pflcli.core.errors import InputError

CLIENTS = ("cleveland", "hungarian", 'St. Mary\'s, "North"')


def write_table(path: Path, words=("no", "yes"), clients=CLIENTS, features=("age", "pulse"), seed=0) -> Path:
    """Write a table of 40 patients per client, half of whom are ill and older for it."""
    draw = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "ill", *features])
        for row in range(40 * len(clients)):
            ill = row % 2
            values = [round(float(draw.normal(50 + 20 * ill, 5)), 2), *draw.integers(60, 90, len(features) - 1)]
            writer.writerow([clients[row // 40], words[ill], *values])
    return path


def make_chain(root: Path, source: Path, **options) -> Path:
    """Make every artifact from a table to the predictions."""
    import_data(source, root / "data", client="hospital", label="ill", **options)
    partition(str(root / "data"), root / "p")
    train_global(root / "p", root / "b", settings={"model": "mlp", "rounds": 2, "participation": 1.0, "lr": 0.01})
    extract(root / "b", root / "e")
    build_datastore(root / "e", root / "d")
    personalize("knn-per", root / "d", root / "knn")
    return root


ARTIFACTS = ("data", "p", "b", "e", "d", "knn")


@pytest.fixture(scope="module")
def artifact_chain(tmp_path_factory) -> Path:
    """A chain that is only read."""
    root = tmp_path_factory.mktemp("made")
    return make_chain(root, write_table(root / "visits.csv"))


def test_every_artifact_keeps_names_without_its_ancestors(artifact_chain, tmp_path):
    for kind in ARTIFACTS:
        shutil.copytree(artifact_chain / kind, tmp_path / kind / "alone")
        known = codebook.read(open_artifact(tmp_path / kind / "alone"))
        assert known.classes == ("no", "yes"), kind
        assert known.features == ("age", "pulse"), kind
        assert known.dataset == "visits.csv", kind
        assert set(known.clients) == (set() if kind == "data" else set(CLIENTS)), kind


def test_clients_csv_contains_client_names(artifact_chain):
    for kind in ("p", "d"):
        rows = list(csv.DictReader((artifact_chain / kind / "clients.csv").open()))
        assert [(row["client"], row["name"]) for row in rows] == [
            (str(i), name) for i, name in enumerate(sorted(CLIENTS))
        ]


def test_clients_without_names_have_numbers():
    assert Codebook().client_names(2) == ["0", "1"]


def test_built_in_datasets_name_their_classes(tmp_path):
    partition("writers", tmp_path / "p", clients=3)
    known = codebook.read(open_artifact(tmp_path / "p"))
    assert known.classes == tuple("0123456789")
    assert (known.dataset, len(known.clients)) == ("writers", 3)
    permuted = {"kind": "labels", "groups": 2}
    partition("writers", tmp_path / "q", scheme="clusters", options=permuted, clients=4)
    assert codebook.read(open_artifact(tmp_path / "q")).classes == ()


def test_damaged_codebook_is_refused(artifact_chain, tmp_path, pfl):
    shutil.copytree(artifact_chain / "p", tmp_path / "p")
    (tmp_path / "p" / "codebook.json").write_text("{}")
    ran = pfl("train-global", tmp_path / "p", "-o", tmp_path / "b", "--model", "mlp")
    assert (ran.code, "codebook.json differs from what was written" in ran.err) == (3, True)


def test_artifact_without_a_codebook_must_be_made_again(small_copy, pfl):
    """As those from before there was one."""
    (small_copy.knn / "codebook.json").unlink()
    manifest = small_copy.knn / "manifest.json"
    fields = json.loads(manifest.read_text())
    del fields["files"]["codebook.json"], fields["seal"]
    manifest.write_text(json.dumps({**fields, "seal": manifests.digest(fields)}, indent=2) + "\n")
    ran = pfl("evaluate", small_copy.knn, "-o", small_copy.root / "scores")
    assert (ran.code, "codebook.json" in ran.err, "Traceback" in ran.err) == (3, True, False)
    assert "pfl personalize" in ran.err


def test_datastore_of_classes_without_names_is_verified(tmp_path):
    permuted = {"kind": "labels", "groups": 2}
    partition("writers", tmp_path / "p", scheme="clusters", options=permuted, clients=4, part=(1, 4))
    train_global(tmp_path / "p", tmp_path / "b", settings={"model": "logistic", "rounds": 1})
    extract(tmp_path / "b", tmp_path / "e")
    build_datastore(tmp_path / "e", tmp_path / "d")
    assert show(tmp_path / "d", verify=True)["kind"] == "datastore"


def test_extract_refuses_reversed_classes_and_names_both_artifacts(pfl, artifact_chain, tmp_path):
    """``diseased`` comes before ``healthy`` as ``no`` before ``yes``: the numbers mean the opposite."""
    source = write_table(tmp_path / "again.csv", words=("healthy", "diseased"))
    import_data(source, tmp_path / "data", client="hospital", label="ill")
    partition(str(tmp_path / "data"), tmp_path / "p")
    for words in ([], ["-n"]):
        ran = pfl("extract", artifact_chain / "b", "--partition", tmp_path / "p", "-o", tmp_path / "e", *words)
        assert ran.code == 3
        assert "differ in their classes: diseased, healthy against no, yes" in ran.err
        assert str(tmp_path / "p") in ran.err
        assert str(artifact_chain / "b") in ran.err
        assert not (tmp_path / "e").exists()
    personalize("local", tmp_path / "p", tmp_path / "local", settings={"model": "mlp"})
    ran = pfl("evaluate", artifact_chain / "knn", tmp_path / "local", "-o", tmp_path / "ev")
    assert (ran.code, "no, yes against diseased, healthy" in ran.err) == (3, True)


def test_update_datastore_refuses_and_names_other_clients(pfl, artifact_chain, tmp_path):
    source = write_table(tmp_path / "again.csv", clients=("basel", "bern"))
    import_data(source, tmp_path / "data", client="hospital", label="ill")
    partition(str(tmp_path / "data"), tmp_path / "p")
    extract(artifact_chain / "b", tmp_path / "e", partition=tmp_path / "p")
    ran = pfl("update-datastore", artifact_chain / "d", tmp_path / "e", "-o", tmp_path / "d", "-n")
    assert ran.code == 3
    assert "differ in their clients: " in ran.err
    assert "against basel, bern" in ran.err


def test_extract_refuses_other_features(pfl, artifact_chain, tmp_path):
    source = write_table(tmp_path / "again.csv", features=("pulse", "age"))
    import_data(source, tmp_path / "data", client="hospital", label="ill")
    partition(str(tmp_path / "data"), tmp_path / "p")
    ran = pfl("extract", artifact_chain / "b", "--partition", tmp_path / "p", "-o", tmp_path / "e")
    assert (ran.code, "differ in their features: pulse, age against age, pulse" in ran.err) == (3, True)


def test_plots_name_clients_and_classes(monkeypatch, artifact_chain, tmp_path):
    from pflcli.evaluation import figures

    drawn = {}
    monkeypatch.setattr(figures, "draw_holdings", lambda *args: drawn.update(holdings=args) or b"")
    monkeypatch.setattr(figures, "draw_neighbours", lambda *args: drawn.update(neighbours=args) or b"")
    figures.draw_partition(open_artifact(artifact_chain / "p"))
    _, title, _, _, names, classes = drawn["holdings"]
    assert title == "visits.csv, natural, 3 clients"
    assert (sorted(names), classes) == (sorted(CLIENTS), ("no", "yes"))
    personalize("gossip", artifact_chain / "p", tmp_path / "g", settings={"model": "mlp", "rounds": 1, "lr": 0.01})
    figures.draw_predictions(open_artifact(tmp_path / "g"))
    assert drawn["neighbours"][2] == "visits.csv: gossip, 3 clients, after 1 round"
    assert sorted(drawn["neighbours"][4]) == sorted(CLIENTS)


def test_require_same_refuses_different_client_scales(tmp_path):
    """Samples that another split standardized, or another way of standardizing, are not what a model was trained on."""
    for name, options in {"a": {}, "b": {"split": 1}, "c": {"standardize": "federation"}}.items():
        partition("heart-disease", tmp_path / name, keep_test=True, options=options)
    a, b, c = (open_artifact(tmp_path / name) for name in "abc")
    codebook.require_same(a, a, *codebook.INPUTS)
    codebook.require_same(a, b, "classes")
    with pytest.raises(InputError, match="differ in the standardization of client 'cleveland'"):
        codebook.require_same(a, b, *codebook.INPUTS)
    for pair in ((a, c), (c, a)):
        with pytest.raises(InputError, match=r"a is standardized by client, and .*c is not"):
            codebook.require_same(*pair, *codebook.INPUTS)


@pytest.mark.parametrize("sd", [["x"], [float("nan")], {"x": 1}, 1])
def test_codebook_with_an_invalid_scale_is_refused(tmp_path, sd):
    partition("heart-disease", tmp_path / "p", keep_test=True)
    artifact, file = open_artifact(tmp_path / "p"), tmp_path / "p" / codebook.FILE
    facts = json.loads(file.read_text())
    facts["scales"][0]["sd"] = sd
    file.write_text(json.dumps(facts))
    with pytest.raises(InputError):
        codebook.read(artifact)


def test_difference_of_long_lists_shows_only_names_that_differ():
    first, second = ([f"client-{i}" for i in range(start, start + 20)] for start in (0, 1))
    words = codebook._describe_difference("clients", first, second, ())
    assert words == "only the first has client-0, only the second client-20"


@pytest.mark.parametrize("deviation", [(1.0, 0.0, 1.0), (1.0, 1.0)])
def test_codebook_with_an_invalid_encoder_normalization_is_refused(deviation):
    fields = codebook.to_fields(Codebook(encoder=Encoder("onnx:x", mean=(0.5, 0.5, 0.5), deviation=deviation)))
    artifact = SimpleNamespace(
        json=lambda name: fields, parsing=lambda name: nullcontext(), manifest=SimpleNamespace(summary={}), origin=None
    )
    with pytest.raises(ValueError, match="no valid normalization"):
        codebook.read(artifact)
