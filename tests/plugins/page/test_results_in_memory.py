"""Results of ``simulate`` as a LaTeX table, a figure and a page: those of the same runs on disk."""

from __future__ import annotations

import json
import warnings
from dataclasses import astuple, replace

import numpy as np
import pandas as pd
import pytest

import pflcli
from pflcli import Federation, plot, report, simulate, table
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import NotDrawnError, UsageError
from pflcli.evaluation import in_memory, latex, lineage
from pflcli.evaluation.charts import vega
from pflcli.evaluation.stored_comparison import read_comparison
from pflcli.plugins.page import in_memory as page_in_memory
from pflcli.plugins.page import runs

SETTINGS = {"model": "logistic", "rounds": 3, "participation": 1.0, "eval_every": 1}
METHODS = ("fedavg", "panm", "knn-per", "ditto")
WRITERS = {"clients": 6, "seed": 0}


@pytest.fixture(scope="module")
def results():
    """Results of four methods with two seeds."""
    federation = Federation.from_dataset("writers", **WRITERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name: [simulate(name, federation, seed=seed, quiet=True, **SETTINGS) for seed in (0, 1)] for name in METHODS
        }


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The comparison on disk of the same methods."""
    folder = tmp_path_factory.mktemp("stored")
    made = pflcli.partition("writers", folder / "p", **WRITERS)
    compared = pflcli.compare(
        made, folder / "c", methods=METHODS, seeds=[0, 1], references=False, threads=1, settings=SETTINGS
    )
    return open_artifact(compared.path)


@pytest.fixture
def without_pictures(monkeypatch):
    """Let nothing be drawn, as without vl-convert."""

    def refuse(*_):
        raise NotDrawnError("no vl-convert here")

    monkeypatch.setattr(vega, "render", refuse)
    monkeypatch.setattr(vega, "bundle_javascript", refuse)


@pytest.mark.filterwarnings("ignore")
def test_latex_of_a_table_in_memory_is_that_of_the_stored_comparison(results, stored):
    mine, theirs = table(results).latex("c"), latex.render(stored)
    body = r"\begin{tabular}"
    assert mine.partition(body)[2] == theirs.partition(body)[2]
    assert r"\label{tab:c}" in mine
    assert mine.count(r"\textbf{") >= 1
    assert "kNN-Per" in mine


def test_figure_of_results_in_memory_is_that_of_the_stored_comparison(results, stored, tmp_path):
    picture = plot(results, tmp_path / "a.png")
    assert picture._artifact.json("accuracy.vl.json") == stored.json("accuracy.vl.json")
    assert (tmp_path / "a.png").read_bytes() == picture._repr_png_()
    assert picture.png().startswith(b"\x89PNG")
    assert plot(stored).save(tmp_path / "a.svg").read_bytes().startswith(b"<svg")
    assert "results" in repr(picture)


def test_figure_of_one_metric_shows_it(results):
    spec = plot(results, metric="f1", baseline="ditto", split="validation")._artifact.json("f1.vl.json")
    assert "F1" in json.dumps(spec)
    assert "validation split" in spec["title"]["text"]


def test_wrong_figures_are_refused(results, stored, tmp_path):
    for given, out, choices, words in (
        (results, tmp_path / "a.txt", {}, "not the name of a PNG"),
        (results, None, {"baseline": "scaffold"}, "baseline 'scaffold'"),
        (stored, None, {"metric": "f1"}, "its own baseline, split and metric"),
        (results["fedavg"][0], None, {}, "results is a Result, not a mapping"),
    ):
        with pytest.raises(UsageError, match=words) as raised:
            plot(given, out, **choices)
        assert raised.value.fix


def test_a_notebook_without_pictures_warns(results, without_pictures):
    with pytest.warns(UserWarning, match="no vl-convert here"):
        assert plot(results)._repr_png_() is None


def test_runs_in_memory_are_those_on_disk(results, stored):
    mine = read_comparison(page_in_memory.evaluate(in_memory.compare_results(results), "page"))
    theirs = read_comparison(stored)
    assert mine.clients.names == theirs.clients.names
    assert mine.clients.tuned.keys() == theirs.clients.tuned.keys() != set()
    known, expected = page_in_memory.collect_runs(results, mine), runs.read(theirs, lineage.trace(stored))
    assert [*known.curves] == [*expected.curves]
    for label, curve in known.curves.items():
        both = (curve, expected.curves[label])
        points = [[astuple(replace(point, seconds=0)) for point in (*each.points, each.end)] for each in both]
        np.testing.assert_allclose(*points, err_msg=label)
        assert (curve.end.seconds > 0) == (expected.curves[label].end.seconds > 0)
    assert known.validation_samples == expected.validation_samples > 0
    assert known.holdings.clients == expected.holdings.clients
    np.testing.assert_array_equal(known.holdings.counts, expected.holdings.counts)
    assert [(each.method, each.title) for each in known.relations] == [("panm", "neighbours")]
    for one, other in zip(known.relations, expected.relations, strict=True):
        assert one.clients == other.clients
        np.testing.assert_array_equal(one.weights, other.weights)


def test_page_of_results_in_memory_has_the_numbers_of_the_stored_one(results, stored, tmp_path, without_pictures):
    mine, theirs = report(results, tmp_path / "mine.html"), report(stored, tmp_path / "theirs.html")
    assert mine.path.read_text().startswith("<!DOCTYPE html>")
    for name in ("1-clients.csv", "1-rounds.csv"):
        one, other = (pd.read_csv(page.data / name) for page in (mine, theirs))
        other = other.drop(columns="client_seconds", errors="ignore")
        pd.testing.assert_frame_equal(one[[*other]], other)
    assert mine.answers[0].partition(" (More")[0] == theirs.answers[0].partition(" (More")[0]
    text = mine.path.read_text()
    assert "What it was made from" not in text
    assert "What it was made from" in theirs.path.read_text()


def test_page_of_results_in_memory_says_how_to_make_them_again(results, tmp_path, without_pictures):
    page = report(results, tmp_path / "page.html")
    calls = json.loads((page.data / "report.json").read_text())["comparisons"][0]["commands"]
    again = {"federation": results["ditto"][0].federation, "simulate": simulate}
    text = "\n".join(calls)
    assert "simulate('ditto', federation, model='logistic', rounds=3" in text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(text, again)
    for label, made in again["results"].items():
        for one, other in zip(made, results[label], strict=True):
            np.testing.assert_array_equal(one.predictions["test"].p, other.predictions["test"].p, label)


def test_page_has_sections_of_results_and_of_artifacts(results, stored, tmp_path, without_pictures):
    page = report([stored, results], tmp_path / "both.html")
    assert len(page.answers) == 2
    assert "both" in page.path.read_text().split("<h2")[2]


def test_page_of_something_else_is_refused(results, tmp_path):
    with pytest.raises(UsageError, match="sources is"):
        report(results["fedavg"], tmp_path / "page.html")
    with pytest.raises(UsageError, match="a has no result"):
        report({"a": []}, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
