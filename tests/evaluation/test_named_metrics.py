"""``--metric``: the metric that ranks methods, and clients for which it is not defined."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from helpers import store_predictions
from pflcli.artifacts.kinds.predictions import Predictions, SplitPredictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.core import tasks
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue
from pflcli.evaluation import lineage, scoring
from pflcli.evaluation.charts import clients as pictures
from pflcli.evaluation.charts import vega
from pflcli.evaluation.presentation import tables
from pflcli.options import declaration

RANKING = [name for name in catalogue.METRICS if name in tasks.find("classes").metrics]


def write_predictions(folder, method, ill, y, sizes, *, seed=0, base=None, classes=2):
    """Predictions of the probability to be ill, for clients of these sizes."""

    def both(p):
        rest = [np.zeros(len(p))] * (classes - 2)
        return np.stack([1 - np.asarray(p), np.asarray(p), *rest], axis=1).astype(np.float32)

    parts = {"p": both(ill), **({} if base is None else {"global": both(base)})}
    answers = SplitPredictions(parts, np.asarray(y), np.arange(len(y)), np.cumsum([0, *sizes]))
    request = {"method": method, "options": {}, "settings": {}, "seed": seed}
    return store_predictions(folder, request, Predictions({"test": answers}, {}))


def read_scores(out):
    metrics = json.loads((out / "metrics.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    return metrics, {row["label"]: row["metrics"] for row in metrics["methods"]}


# Clients of 4, 0, 3 and 2 samples; nobody of the last one is ill.
SIZES, Y = [4, 0, 3, 2], [0, 0, 1, 1, 0, 1, 1, 0, 0]
GOOD = [0.1, 0.2, 0.3, 0.4, 0.2, 0.9, 0.1, 0.1, 0.1]  # AUROC 1 and 1/2, accuracy 2/4, 2/3 and 1
BAD = [0.4, 0.1, 0.3, 0.9, 0.6, 0.7, 0.9, 0.7, 0.7]  # AUROC 3/4 and 1, accuracy 3/4, 2/3 and 0


def test_metric_option_matches_hand_computed_scores(tmp_path):
    fedavg = write_predictions(tmp_path / "a", "fedavg", BAD, Y, SIZES)
    other = write_predictions(tmp_path / "b", "other", GOOD, Y, SIZES)
    evaluate([fedavg, other], tmp_path / "e", metrics=["auroc", "sensitivity"])
    metrics, rows = read_scores(tmp_path / "e")
    auroc = {name: metric["value"] for name, metric in rows["other"].items() if name.startswith("auroc")}
    assert auroc == {
        "auroc": pytest.approx((4 * 1 + 3 * 0.5) / 7), "auroc_mean": 0.75, "auroc_bottom_decile": 0.5,
        "auroc_worst": 0.5,
    }  # fmt: skip
    assert (rows["other"]["auroc"]["n"], rows["other"]["auroc"]["of"]) == (2, 3)
    assert rows["other"]["sensitivity"]["value"] == pytest.approx((4 * 0 + 3 * 0.5) / 7)
    gain = rows["other"]["gain"]
    assert gain["value"] == pytest.approx((4 * 0.25 - 3 * 0.5) / 7)
    assert (gain["n"], gain["of"], gain["unit"], gain["baseline_worst"]) == (2, 3, "fraction", 0.75)
    assert (rows["other"]["better_off"]["value"], rows["other"]["worse_off"]["value"]) == (0.5, 0.5)
    assert rows["other"]["better_off"]["by_chance"] == 0.5  # two clients that differ, each as likely as not
    assert metrics["metric"] == ["auroc", "sensitivity"]
    assert metrics["definitions"] == [
        "the positive class is 1",
        "AUROC is not defined for 1 of 3 clients, which lack samples of two classes and are left out",
        "sensitivity is not defined for 1 of 3 clients, which lack samples of the positive class and are left out",
        "1 of 4 clients have no test samples and are not counted: client 1",
    ]
    assert "by AUROC" in metrics["conclusion"]["sentence"]
    assert set(metrics["definitions"]) <= set((tmp_path / "e" / "table.md").read_text().splitlines())
    cells = list(csv.DictReader((tmp_path / "e" / "clients.csv").open()))[4:]
    assert [row["auroc"] for row in cells] == ["1", "", "0.5", ""]
    assert [row["sensitivity"] for row in cells] == ["0", "", "0.5", ""]
    assert [row["baseline_auroc"] for row in cells] == ["0.75", "", "1", ""]
    assert [row["gain"] for row in cells] == ["0.25", "", "-0.5", ""]
    (row,) = [row for row in csv.DictReader((tmp_path / "e" / "table.csv").open()) if row["method"] == "other"]
    assert (row["auroc_clients"], row["auroc_mean"]) == ("2", "0.75")


@pytest.mark.parametrize("positive", [None, "1", "0"])
def test_positive_option_matches_hand_computed_scores(tmp_path, positive):
    """Six samples; 0.5 is a tie, which counts as class 0."""
    artifact = write_predictions(tmp_path / "a", "fedavg", [0.9, 0.8, 0.7, 0.5, 0.4, 0.1], [1, 0, 1, 1, 0, 0], [6])
    metrics = ["sensitivity", "specificity", "average_precision", "auroc"]
    outcome = evaluate([artifact], tmp_path / "e", metrics=metrics, positive=positive)
    content, rows = read_scores(tmp_path / "e")
    values = [rows["fedavg"][name]["value"] for name in metrics]
    # Ordered by the probability of class 1 the labels are 1 0 1 1 0 0, by that of class 0 they are 0 0 1 1 0 1.
    if positive == "0":
        assert values == pytest.approx([2 / 3, 2 / 3, (1 + 1 + 3 / 5) / 3, 7 / 9])
    else:
        assert values == pytest.approx([2 / 3, 2 / 3, (1 + 2 / 3 + 3 / 4) / 3, 7 / 9])
    assert content["definitions"] == [f"the positive class is {positive or 1}"]
    assert outcome.request.get("positive") == positive


def test_exchanging_the_positive_class_swaps_sensitivity_and_specificity(tmp_path):
    """Of three ill two are found, of two healthy one: (0.9, 0.6, 0.2) and (0.5, 0.7), where the tie is class 0."""
    artifact = write_predictions(tmp_path / "a", "fedavg", [0.9, 0.6, 0.2, 0.5, 0.7], [1, 1, 1, 0, 0], [5])
    for positive, expected in (("1", (2 / 3, 1 / 2)), ("0", (1 / 2, 2 / 3))):
        evaluate([artifact], tmp_path / positive, metrics=["sensitivity", "specificity"], positive=positive)
        _, rows = read_scores(tmp_path / positive)
        assert [rows["fedavg"][name]["value"] for name in ("sensitivity", "specificity")] == pytest.approx(expected)
        (row,) = csv.DictReader((tmp_path / positive / "clients.csv").open())
        assert [float(row[name]) for name in ("sensitivity", "specificity")] == pytest.approx(expected, abs=1e-6)
    (line,) = lineage.list_commands(lineage.trace(open_artifact(tmp_path / "0")))[-1:]
    assert "--positive 0" in line


def test_gains_use_the_positive_class(tmp_path):
    """The method finds one more of two healthy than the baseline, and one fewer of two ill."""
    y = [1, 1, 0, 0]
    fedavg = write_predictions(tmp_path / "a", "fedavg", [0.9, 0.9, 0.9, 0.1], y, [4])
    other = write_predictions(tmp_path / "b", "other", [0.9, 0.1, 0.1, 0.1], y, [4])
    for positive, gain in (("1", -0.5), ("0", 0.5)):
        evaluate([fedavg, other], tmp_path / positive, metrics=["sensitivity"], positive=positive)
        assert read_scores(tmp_path / positive)[1]["other"]["gain"]["value"] == gain


def test_positive_option_is_refused_for_unknown_or_more_than_two_classes(tmp_path):
    two = write_predictions(tmp_path / "a", "fedavg", [0.9, 0.1], [1, 0], [2])
    three = write_predictions(tmp_path / "b", "fedavg", [0.9, 0.1], [1, 0], [2], classes=3)
    with pytest.raises(UsageError, match="unknown class 'ill' for --positive"):
        evaluate([two], tmp_path / "e", positive="ill")
    with pytest.raises(UsageError, match="--positive is for two classes, and there are 3"):
        evaluate([three], tmp_path / "e", positive="1")
    assert not (tmp_path / "e").exists()


def test_positive_option_suggests_a_similar_class_name():
    with pytest.raises(UsageError) as error:
        catalogue.positive_class("healty", ["healthy", "ill"])
    assert "did you mean 'healthy'" in " ".join(error.value.fix)
    assert catalogue.positive_class("healthy", ["healthy", "ill"]) == 0


def test_methods_are_ranked_by_the_given_metric(tmp_path):
    """FedAvg calls everybody ill, but knows better who is; of errors the lowest is the best."""
    y, sizes = [0, 0, 0, 1, 1], [5]
    fedavg = write_predictions(tmp_path / "a", "fedavg", [0.6, 0.6, 0.6, 0.9, 0.9], y, sizes)
    other = write_predictions(tmp_path / "b", "other", [0.1, 0.1, 0.6, 0.2, 0.9], y, sizes)
    best = {
        name: evaluate([fedavg, other], tmp_path / name, metrics=[name]).summary["best"]
        for name in ("accuracy", "auroc", "brier-score", "log_loss")
    }
    assert best == {"accuracy": "other", "auroc": "fedavg", "brier-score": "other", "log_loss": "other"}
    for name in best:
        assert ("metric" in open_artifact(tmp_path / name).manifest.request) == (name != "accuracy")
        assert [path.stem for path in (tmp_path / name).glob("*.png")] == [name.replace("-", "_")]
    _, rows = read_scores(tmp_path / "brier-score")
    assert rows["fedavg"]["brier_score"]["value"] == pytest.approx((3 * 0.36 + 2 * 0.01) / 5)
    assert rows["other"]["gain"]["value"] == pytest.approx((3 * 0.36 + 0.01 - 2 * 0.01 - 0.36 - 0.64) / 5)
    assert rows["other"]["better_off"]["value"] == 1


def test_table_shows_the_ranking_metric_first_and_is_not_wider(tmp_path):
    artifacts = [
        write_predictions(tmp_path / name, name, p, Y, SIZES) for name, p in (("fedavg", BAD), ("other", GOOD))
    ]
    evaluate(artifacts, tmp_path / "e")
    plain, _ = read_scores(tmp_path / "e")
    evaluate(artifacts, tmp_path / "f", metrics=["brier_score", "f1"])
    chosen, _ = read_scores(tmp_path / "f")
    before, after = tables.build(plain, "comparison"), tables.build(chosen, "comparison")
    assert after.heading[2:5] == ["Brier score", "plain mean", "worst"]
    assert {*after.heading} - {*before.heading} == {"Brier score", "plain mean", "worst", "F1 %", "gain"}
    assert {*before.heading} - {*after.heading} == {"plain mean %", "worst %", "gain (points)"}
    assert len({*after.heading}) == len(after.heading)
    assert "Brier score" not in after.gives_way
    cells = dict(zip(after.heading, after.rows[0], strict=True))
    assert cells["Brier score"] == f"{chosen['methods'][0]['metrics']['brier_score']['value']:.3f}"
    assert cells["gain"].startswith("+0.")


def test_accuracy_as_metric_equals_the_default(tmp_path):
    artifacts = [
        write_predictions(tmp_path / name, name, p, Y, SIZES) for name, p in (("fedavg", BAD), ("other", GOOD))
    ]
    for out, options in (("e", {}), ("f", {"metrics": ["accuracy"]})):
        evaluate(artifacts, tmp_path / out, **options)
    metrics, rows = read_scores(tmp_path / "e")
    assert "metric" not in metrics
    assert metrics["definitions"] == ["1 of 4 clients have no test samples and are not counted: client 1"]
    assert not {name for name in rows["other"] if name.startswith("auroc")}
    assert open_artifact(tmp_path / "e").manifest.fingerprint == open_artifact(tmp_path / "f").manifest.fingerprint


def test_global_model_is_the_baseline_of_any_metric(tmp_path):
    evaluate([write_predictions(tmp_path / "a", "mine", GOOD, Y, SIZES, base=BAD)], tmp_path / "e", metrics=["auroc"])
    metrics, rows = read_scores(tmp_path / "e")
    assert metrics["baseline"] == "global"
    assert rows["mine"]["gain"]["value"] == pytest.approx((4 * 0.25 - 3 * 0.5) / 7)


def test_evaluate_refuses_unknown_or_undefined_metrics(tmp_path):
    artifacts = [write_predictions(tmp_path / "a", "mine", GOOD, Y, SIZES, classes=3)]
    for names, words in (
        (["aurok"], "unknown metric 'aurok'"), (["macro_precision"], "unknown"), ([], "--metric names no metric"),
        (["specificity"], "specificity is defined for two classes, and there are 3"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            evaluate(artifacts, tmp_path / "e", metrics=names)
    assert not (tmp_path / "e").exists()
    evaluate(artifacts, tmp_path / "e", metrics=["auroc"])
    assert "AUROC: mean over the classes" in read_scores(tmp_path / "e")[0]["definitions"][0]


DEGENERATE = {
    "no samples, one, and one class": ([0, 1, 3, 4], [1, 0, 0, 0, 0, 1, 0, 1]),
    "one sample": ([1], [0]),
    "the positive class alone": ([3, 2], [1] * 5),
    "the negative class alone": ([3, 2], [0] * 5),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_every_metric_is_defined_or_counted_as_not_defined(tmp_path, monkeypatch, case):
    """A law of the catalogue: nobody is scored 0 for want of samples, and whoever is left out is counted."""
    monkeypatch.setattr(pictures, "draw_clients", lambda *args: {**vega.data([]), "mark": "point"})  # drawn below, once
    sizes, y = DEGENERATE[case]
    draw = np.random.default_rng(0)
    artifacts = [
        write_predictions(tmp_path / f"{name}{seed}", name, draw.random(len(y)), y, sizes, seed=seed)
        for seed in (0, 1)
        for name in ("fedavg", "mine")
    ]
    clients = 2 * sum(size > 0 for size in sizes)
    for name in RANKING:
        evaluate(artifacts, tmp_path / name, metrics=[name])
        metrics, rows = read_scores(tmp_path / name)
        column = [row[name] for row in csv.DictReader((tmp_path / name / "clients.csv").open())]
        defined = sum(cell != "" for cell in column) // 2
        for row in rows.values():
            assert row[name].get("of", defined) == (clients if "of" in row[name] else defined)
            assert row[name]["n"] == defined or catalogue.METRICS[name].over is None
            assert (row[name]["value"] is None) == (defined == 0)
            assert ("gain" in row) == (defined > 0)
        is_counted = any("is not defined for" in line for line in metrics.get("definitions", ()))
        assert is_counted == (defined < clients)
        needs = catalogue.METRICS[name].needs
        assert needs or defined == clients
        assert tables.build(metrics).rows


def test_every_ranking_metric_has_its_parts_in_the_catalogue():
    for name in RANKING:
        for part in ("mean", "bottom_decile", "worst", "seen", "unseen"):
            entry = catalogue.METRICS[catalogue.part(name, part)]
            assert (entry.score, entry.percent) == (name, catalogue.METRICS[name].percent)
        columns = catalogue.columns("comparison", (name,))
        assert columns[0] == name
        headings = [catalogue.METRICS[column].heading for column in catalogue.columns("evaluation", RANKING)]
        assert len({*headings}) == len(headings)


def test_help_of_the_metric_option_names_every_metric():
    _, option = declaration.Metrics.__metadata__
    assert {*RANKING} <= {*re.split(r"[^a-z0-9_]+", option.help)}


def test_plots_show_the_given_metric(tmp_path, monkeypatch):
    drawn = []
    draw = pictures.draw_clients

    def by_client(names, scores, baseline, title, metric):
        drawn.append((title, metric.name, {label: values.tolist() for label, values in scores.items()}))
        return draw(names, scores, baseline, title, metric)

    monkeypatch.setattr(pictures, "draw_clients", by_client)
    artifacts = [
        write_predictions(tmp_path / name, name, p, Y, SIZES) for name, p in (("fedavg", BAD), ("other", GOOD))
    ]
    evaluate(artifacts, tmp_path / "e", metrics=["auroc"])
    assert drawn == [("AUROC by client, test split", "auroc", {"fedavg": [0.75, 1.0], "other": [1.0, 0.5]})]
    empty = {"fedavg": np.zeros(0), "other": np.zeros(0)}
    assert vega.render(draw([], empty, "fedavg", "title", catalogue.METRICS["auroc"])).startswith(b"\x89PNG")
    for name in ("auroc", "brier_score"):
        values = {"fedavg": np.asarray([0.2, math.nan] * 15), "other": np.asarray([0.4, math.nan] * 15)}
        spec = pictures.draw_ranked(values, "fedavg", "title", catalogue.METRICS[name])
        assert len(vega.render(spec)) > 10_000


def test_scores_of_seen_and_unseen_clients_match_hand_computed_values(tmp_path):
    artifacts = [open_artifact(write_predictions(tmp_path / "a", "mine", GOOD, Y, SIZES))]
    (item,) = scoring.score(artifacts, "test", "fedavg", metric_names=("auroc",))
    late = replace(item, new=np.asarray([False, False, True, True]))
    rows = scoring.summarize([late], "test", "fedavg")["methods"][0]["metrics"]
    assert [rows[f"auroc_{group}"]["value"] for group in ("seen", "unseen")] == [1, 0.5]
    assert [(rows[f"auroc_{group}"]["n"], rows[f"auroc_{group}"]["of"]) for group in ("seen", "unseen")] == [
        (1, 1), (1, 2),
    ]  # fmt: skip
    assert [rows[f"accuracy_{group}"]["value"] for group in ("seen", "unseen")] == [0.5, pytest.approx(4 / 5)]
