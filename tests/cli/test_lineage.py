"""``pfl show --lineage``: one line per artifact as text, and the same facts as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers import FORCE
from pflcli.artifacts import kinds, verification
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.show import show, trace
from pflcli.commands.train_global import train_global

GOLDEN = Path(__file__).parents[1] / "golden" / "schema-1"


def normalize_lines(text):
    """The lines without what differs between machines (seconds, accuracy), and without the first column's width."""
    text = re.sub(r"\d+\.\d s$", "T s", re.sub(r"(?<=\w) {2,}", "  ", text), flags=re.M)
    return re.sub(r"accuracy \d+\.\d %", "accuracy A %", text).splitlines()


def test_lineage_is_a_tree_with_one_line_per_artifact(pfl, small_copy, monkeypatch):
    monkeypatch.chdir(small_copy.root)
    ran = pfl("show", "knn", "--lineage", "--verify")
    assert (ran.code, ran.err) == (0, "")
    assert normalize_lines(ran.out) == [
        "knn  predictions: knn-per, seed 0, model mlp, 2 rounds, T s",
        "└─ d  datastore: index Flat, 6 stores, 285 samples, 0.2 MB, T s",
        "   └─ e  embeddings: 473 samples, 200 dimensions, T s",
        "      └─ b  backbone: fedavg, model mlp, 2 rounds, validation accuracy A %, T s",
        "         └─ p  partition: writers, scheme natural, 6 clients, 473 samples, T s",
        "5 artifacts, 16 files verified",
        "this machine has the recorded versions and processor",
    ]


def test_lineage_describes_a_shared_input_once(pfl, small_copy, monkeypatch):
    monkeypatch.chdir(small_copy.root)
    lines = normalize_lines(pfl("show", "ud", "--lineage").out)
    assert [re.sub(r"  (\w+):.*", r"  \1", line) for line in lines] == [
        "ud  datastore",
        "├─ e  embeddings",
        "│  └─ b  backbone",
        "│     └─ p  partition",
        "└─ d  datastore",
        "   └─ e  see above",
        "5 artifacts, 18 files",
    ]


def test_lineage_verifies_a_shared_input_once(small, monkeypatch):
    checked = []
    monkeypatch.setattr(verification, "verify", lambda artifact: checked.append(artifact.path))
    root = trace(small.ud, verify=True)
    assert len(checked) == len({*checked}) == 5
    assert root.inputs[0] is root.inputs[1].inputs[0]


def test_lineage_json_nests_every_input(pfl, small):
    facts = json.loads(pfl("show", small.ud, "--lineage", "--verify", "--json").out)
    embeddings, store = facts["inputs"]
    assert store["inputs"] == [embeddings]
    assert embeddings == show(small.e, lineage=True, verify=True)
    assert embeddings["verified"] == len(embeddings["files"])
    without = {**show(small.e), "inputs": embeddings["inputs"], "verified": embeddings["verified"]}
    assert embeddings == {**without, "machine_differs": []}


@pytest.mark.parametrize("kind", kinds.schemas())
def test_describe_handles_old_and_empty_manifests_of_every_kind(kind):
    manifest = open_artifact(GOLDEN / kind).manifest
    facts = kinds.load(kind).describe(manifest)
    assert len([fact for fact in facts if fact]) >= 2
    assert all(len(fact) < 40 for fact in facts)
    for part in (manifest.request, manifest.summary, manifest.made):
        part.clear()
    assert not any(kinds.load(kind).describe(manifest))


def test_lineage_with_a_replaced_input_is_an_error(pfl, small_copy):
    train_global(small_copy.p, small_copy.b, settings={"model": "mlp", "rounds": 1}, execution=FORCE)
    ran = pfl("show", small_copy.knn, "--lineage")
    assert (ran.code, ran.out) == (3, "")
    assert "was replaced by another request" in ran.err
