"""References are marked in tables, stand below the methods, and are not compared with them."""

from __future__ import annotations

import json

import pytest

import pflcli
from pflcli.artifacts.reader import open_artifact
from pflcli.evaluation import failed_training, latex
from pflcli.evaluation.presentation.conclusion import Marks


@pytest.fixture(scope="module")
def comparison_folder(small, tmp_path_factory):
    """A comparison with two references, of which ``pooled`` has the best score, and a report of it."""
    folder = tmp_path_factory.mktemp("references")
    names = ["pooled", "fedavg", "ditto", "constant"]
    pflcli.compare(small.p, folder / "c", methods=names, model="mlp", rounds=8, lr=0.1, threads=1, references=False)
    pflcli.report(folder / "c", folder / "page.html")
    return folder


def read(folder):
    return json.loads((folder / "c" / "comparison" / "metrics.json").read_text())


def test_references_follow_the_methods_and_are_marked_in_every_format(comparison_folder, pfl):
    shown = pfl("show", comparison_folder / "c").out
    rows = read(comparison_folder)["methods"]
    assert [row["label"] for row in rows if not row.get("reference")] == [row["label"] for row in rows[:2]]
    assert {row["label"] for row in rows if row.get("reference")} == {"pooled", "constant"}
    table = (comparison_folder / "c" / "comparison" / "table.md").read_text()
    page = (comparison_folder / "page.html").read_text()
    tex = latex.render(open_artifact(comparison_folder / "c" / "comparison"))
    for name, paper in (("pooled", "Pooled"), ("constant", "Constant")):
        assert f"{name} (reference)" in shown
        assert f"{name} (reference)" in table
        assert f">{name}</button> (reference)" in page
        assert f"{paper} (reference)" in tex
    assert "reference, not ranked and not counted among the methods: " in table
    assert "fedavg (reference)" not in shown + table + page + tex


def test_references_are_not_counted_and_never_the_best_method(comparison_folder):
    metrics = read(comparison_folder)
    assert metrics["conclusion"]["judged"] == ["ditto"]
    scores = {row["label"]: row["metrics"] for row in metrics["methods"]}
    assert "p_corrected" in scores["ditto"]["gain"]
    assert not {"p", "p_corrected"} & scores["pooled"]["gain"].keys()
    assert "exceeds_chance" in scores["ditto"]["better_off"]
    assert "exceeds_chance" not in scores["pooled"]["better_off"]
    assert scores["pooled"]["accuracy"]["value"] > max(
        scores[name]["accuracy"]["value"] for name in ("fedavg", "ditto")
    )
    marked = Marks.read(metrics, ["accuracy"])["accuracy"]
    assert marked.best | marked.not_worse <= {"fedavg", "ditto"}
    assert marked.best
    summary = open_artifact(comparison_folder / "c" / "comparison").manifest.summary
    assert summary["best"] in ("fedavg", "ditto")


def make_row(label, accuracy, **more):
    return {"label": label, "method": label, "metrics": {"accuracy": {"value": accuracy}}, **more}


def test_methods_not_above_the_constant_reference_are_warned_of():
    rows = [make_row("ditto", 0.5), make_row("fedavg", 0.4), make_row("pooled", 0.3, reference=True)]
    assert failed_training.find_below_constant(rows) == []
    (line,) = failed_training.find_below_constant([*rows, make_row("constant", 0.4, reference=True)])
    assert "not above `constant`, each client's most frequent class (40.0 %): `fedavg` (40.0 %);" in line
    assert failed_training.find_below_constant([*rows, make_row("constant", 0.39, reference=True)]) == []
    assert failed_training.find_below_constant([*rows, make_row("constant", None, reference=True)]) == []


def test_report_names_the_best_reference_when_there_are_no_methods(small, tmp_path):
    pflcli.compare(
        small.p, tmp_path / "c", methods="constant,pooled", model="mlp", rounds=1, threads=1, references=False
    )
    (answer,) = pflcli.report(tmp_path / "c", tmp_path / "page.html").answers
    assert "all rows are references: pooled has the best accuracy" in answer
