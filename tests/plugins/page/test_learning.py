"""The curves of a page have the numbers of the stored rounds, on every axis, and on both splits."""

from __future__ import annotations

import csv
import io
import json
import re
import time

import browser
import numpy as np
import pytest
import synthetic

from helpers import chart_rows
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.evaluation import lineage
from pflcli.evaluation.charts import vega
from pflcli.evaluation.stored_comparison import read_comparison
from pflcli.plugins.page import charts, learning, runs
from pflcli.plugins.page.report import report

LINKS = ("bytes_up", "bytes_down", "bytes_peer")
AXES = ("round", "megabytes", "seconds")
CHOICE = "[...document.querySelectorAll('.choice figure')].map((figure) => getComputedStyle(figure).visibility)"


def read_stored(folder):
    """Return the rounds of a run (r,), and its accuracy, MB sent and seconds of a client up to each, (r, 3)."""
    made = open_artifact(folder).manifest.made
    rows = list(csv.DictReader((folder / "rounds.csv").open()))
    column = "personal_accuracy" if rows[-1]["personal_accuracy"] else "validation_accuracy"
    sent, spent, found = 0.0, 0.0, []
    for row in rows:
        shared = 1 if row["round"] == "0" else int(row["clients"])
        sent += sum(int(row[link]) for link in LINKS) / 1e6
        spent += float(row["seconds"]) * min(made["threads"], shared) / shared
        if row[column]:
            found.append((int(row["round"]), float(row[column]), sent, spent))
    table = np.array(found)
    return table[:, 0], table[:, 1:]


def draw(artifact):
    comparison = read_comparison(artifact)
    behind = runs.read(comparison, lineage.trace(artifact))
    return behind, {chart.key: chart for chart in charts.draw(comparison, behind)}


@pytest.mark.parametrize(("method", "folder"), [("fedavg", "backbone"), ("panm", "panm")])
def test_curves_are_means_of_the_stored_rounds(compared, method, folder):
    behind, drawn = draw(open_artifact(compared.path))
    (rounds, first), (_, second) = (read_stored(compared.out / f"seed-{seed}" / folder) for seed in (0, 1))
    expected = (first + second) / 2
    curve = behind.curves[method]
    assert [point.round for point in curve.points] == rounds.tolist() == [1, 2, 3]
    actual = [(point.accuracy, point.megabytes, point.seconds) for point in (*curve.points, curve.end)]
    assert actual == [pytest.approx(values) for values in (*expected.tolist(), expected[-1].tolist())]
    for axis, place in zip(AXES, (None, 1, 2), strict=True):
        rows = [row for row in chart_rows(drawn[f"curves-{axis}"].spec["layer"][0]) if row["method"] == method]
        across = rounds if place is None else expected[:, place]
        assert [row[axis] for row in rows] == pytest.approx(across.tolist(), rel=1e-4, abs=1e-4)
        assert [row["accuracy"] for row in rows] == pytest.approx(expected[:, 0].tolist(), abs=1e-4)


def test_a_method_on_a_backbone_is_a_dot_at_its_rounds_with_its_own_predictions(compared):
    behind, drawn = draw(open_artifact(compared.path))
    curve, (_, values) = behind.curves["knn-per"], read_stored(compared.out / "seed-0" / "backbone")
    assert curve.points == []
    scores = []
    for seed in (0, 1):
        answers = predictions.read(open_artifact(compared.out / f"seed-{seed}" / "knn-per"), "validation")
        scores.append(np.mean(answers.parts["p"].argmax(axis=1) == answers.y))
    assert (curve.end.round, curve.end.accuracy) == (3, pytest.approx(np.mean(scores)))
    assert curve.end.megabytes == pytest.approx(values[-1, 1])
    assert curve.end.seconds == behind.curves["fedavg"].end.seconds
    for axis in AXES:
        (dot,) = (row for row in chart_rows(drawn[f"curves-{axis}"].spec) if row["method"] == "knn-per")
        assert dot[axis] == pytest.approx(getattr(curve.end, axis), rel=1e-4, abs=1e-4)
        assert "Only this one is known of knn-per." in drawn[f"curves-{axis}"].caption


@pytest.mark.usefixtures("without_vega")
def test_numbers_of_curves_are_beside_the_page(compared, tmp_path):
    report([compared.path], tmp_path / "r.html")
    rows = list(csv.DictReader((tmp_path / "r_data" / "1-rounds.csv").open()))
    (_, first), (_, second) = (read_stored(compared.out / f"seed-{seed}" / "panm") for seed in (0, 1))
    own = [row for row in rows if row["method"] == "panm"]
    assert [(row["round"], row["reported"]) for row in own] == [("1.0", "0"), ("2.0", "0"), ("3.0", "0"), ("3.0", "1")]
    columns = ("validation_accuracy", "megabytes", "client_seconds")
    numbers = [[float(row[name]) for name in columns] for row in own[:-1]]
    np.testing.assert_allclose(numbers, (first + second) / 2, rtol=1e-9)


def test_names_of_ten_methods_stand_apart_beside_their_curves(tmp_path):
    methods = [f"method-{number}" for number in range(10)]
    comparison = read_comparison(synthetic.write_comparison(tmp_path / "c", methods, ["a", "b"]))
    curves = {}
    for place, label in enumerate(methods):
        points = [runs.Point(t, 0.8 - 0.4 / t, np.nan, 10.0**place * t, t) for t in range(1, 6)]
        curves[label] = runs.Curve(points, points[-1])
    for chart in learning.draw(comparison, runs.Runs(curves)):
        svg = vega.render({**chart.spec, "width": 700}, "svg").decode()
        heights = sorted(float(y) for y in re.findall(r"translate\([\d.]+,([\d.]+)\)[^>]*>method-\d<", svg))
        assert len(heights) == 10
        assert min(np.diff(heights)) > 11
        assert ("logarithmic" in chart.caption) == (chart.key == "curves-megabytes")


def test_best_round_is_marked_on_its_curve(tmp_path):
    """The dot is at the reported round, not at the last one."""
    comparison = read_comparison(synthetic.write_comparison(tmp_path / "c", ["fedavg", "ditto"], ["a", "b"]))
    points = [runs.Point(t, accuracy, np.nan, t, t) for t, accuracy in ((1, 0.5), (2, 0.7), (3, 0.6))]
    drawn = learning.draw(comparison, runs.Runs({"ditto": runs.Curve(points, points[1])}))
    for chart in drawn:
        (dot,) = chart_rows(chart.spec["layer"][1])
        assert (dot["round"], dot["accuracy"]) == (2, 0.7)


@pytest.fixture(scope="module")
def in_time(tmp_path_factory):
    """A comparison of two partitions whose samples are split by time, with test accuracy after each round."""
    at, draw = tmp_path_factory.mktemp("time"), np.random.default_rng(0)
    rows = ["client,t,x1,x2,y"]
    for client in "abc":
        rows += [f"{client},{t},{draw.normal():.4f},{draw.normal():.4f},{draw.integers(2)}" for t in range(40)]
    (at / "data.csv").write_text("\n".join(rows) + "\n")
    import_data(at / "data.csv", at / "data", label="y", client="client", order="t")
    for seed in (0, 1):
        partition(str(at / "data"), at / f"p{seed}", scheme="natural", seed=seed)
    settings = {"model": "logistic", "rounds": 3, "participation": 1.0, "eval_every": 1, "test_last": 3}
    parts = [at / "p0", at / "p1"]
    compare(parts, at / "c", methods=["fedavg", "ditto"], settings=settings, references=False)
    return at


def test_a_split_by_time_shows_both_curves_and_says_what_it_means(in_time, compared):
    artifact = open_artifact(in_time / "c" / "comparison")
    comparison, (behind, drawn) = read_comparison(artifact), draw(artifact)
    (note,) = (line for line in comparison.notes if line.startswith("split by time"))
    assert "--test-last" in note
    assert any(line.startswith("every seed has the same split by time: seeds differ in training alone")
               for line in comparison.notes)  # fmt: skip
    assert note in (in_time / "c" / "comparison" / "table.md").read_text()
    rows = chart_rows(drawn["splits"].spec)
    for method, folder in (("fedavg", "backbone"), ("ditto", "ditto")):
        text = [(in_time / "c" / f"seed-{seed}" / folder / "rounds.csv").read_text() for seed in (0, 1)]
        stored = [list(csv.DictReader(io.StringIO(each))) for each in text]
        tested = [np.mean([float(run[t]["test_accuracy"]) for run in stored]) for t in range(3)]
        assert [point.test for point in behind.curves[method].points] == pytest.approx(tested)
        shown = [row["accuracy"] for row in rows if row["method"] == method and row["split"] == "test"]
        assert shown[:3] == pytest.approx(tested, abs=1e-4)
        assert {row["split"] for row in rows if row["method"] == method} == {"validation", "test"}
    usual = read_comparison(open_artifact(compared.path))
    assert "split by time" not in " ".join(usual.notes)
    assert "given_split" not in usual.metrics
    assert "splits" not in draw(open_artifact(compared.path))[1]


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium is installed")
def test_one_axis_is_shown_at_a_time_with_and_without_a_script(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "render_still", lambda chart: "data:image/png;base64,AA==")  # they take seconds
    report([compared.path], tmp_path / "r.html")
    with browser.browser() as tab:
        for has_script in (True, False):
            tab.send("Emulation.setScriptExecutionDisabled", value=not has_script)
            if has_script:
                tab.open(tmp_path / "r.html", 1280, 4000)
            else:
                tab.send("Page.navigate", url=(tmp_path / "r.html").as_uri())
                while tab.run("document.readyState") != "complete" or tab.run("document.documentElement.className"):
                    time.sleep(0.1)
            assert tab.run(CHOICE) == ["visible", "hidden", "hidden"]
            tab.run("document.querySelectorAll('.choice input')[1].click()")
            assert tab.run(CHOICE) == ["hidden", "visible", "hidden"]
        assert tab.errors == []
    labels = re.findall(r'<label for="curves-[^"]+">([^<]+)<', (tmp_path / "r.html").read_text())
    assert labels == ["rounds", "MB sent", "seconds of a client"]
    assert json.loads((tmp_path / "r_data" / "report.json").read_text())["files"]
