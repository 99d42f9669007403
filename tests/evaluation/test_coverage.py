"""``--coverage``: prediction sets in evaluations, comparisons, reports and predictions."""

from __future__ import annotations

import csv
import json
import math
import re

import h5py
import numpy as np
import pytest

from helpers import store_predictions
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import evaluation as evaluations
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.predictions import Predictions, SplitPredictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.commands.predict import predict
from pflcli.core.errors import InputError, UsageError
from pflcli.core.settings import Settings
from pflcli.evaluation import coverage, scoring
from pflcli.evaluation.metrics import conformal
from pflcli.evaluation.presentation import prediction_sets
from pflcli.workflow.comparison import tunings
from pflcli.workflow.comparison.variants import resolve_variants
from pflcli.workflow.prediction import prediction_file


def make_split(label_p, y, sizes, classes=3):
    """Predictions in which the label has these probabilities, the class after it half of the rest, and so on."""
    p = np.zeros((len(y), classes))
    for row, (value, label) in enumerate(zip(label_p, y, strict=True)):
        p[row] = (1 - value) / (classes - 1)
        p[row, label] = value
    return SplitPredictions({"p": p.astype(np.float32)}, np.asarray(y, int), np.arange(len(y)), np.cumsum([0, *sizes]))


def write_predictions(folder, method, validation, test, *, seed=0, tuned=None, settings=None, names=()):
    splits = {"test": test} if validation is None else {"validation": validation, "test": test}
    request = {"method": method, "options": {}, "settings": settings or {}, "seed": seed}
    return store_predictions(folder, request, Predictions(splits, tuned or {}), names)


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_choices(folder):
    """The methods that metrics.json says to have chosen on the samples that calibrate; table.md names the same ones."""
    sets = json.loads((folder / "metrics.json").read_text())["sets"]["methods"]
    chosen = {label for label, facts in sets.items() if facts.get("chose_on_validation")}
    named = re.findall(r"^(.*) also chose on the validation samples", (folder / "table.md").read_text(), re.MULTILINE)
    assert {label for line in named for label in re.split(", | and ", line)} == chosen
    return chosen


def write_two_clients(folder, method="fedavg", **kwargs):
    """Two clients at 75 %: the first has three validation samples, enough for its own threshold; the second two."""
    validation = make_split([0.75, 0.5, 0.625, 0.125, 0.25], [0, 1, 2, 0, 1], [3, 2])
    test = make_split([0.5, 0.375, 0.125, 0.0625], [0, 1, 2, 0], [3, 1])
    return write_predictions(folder, method, validation, test, names=("anna", "=berta"), **kwargs)


def test_prediction_sets_match_hand_computed_ones(tmp_path):
    evaluate([write_two_clients(tmp_path / "a")], tmp_path / "e", coverage=0.75)
    sets = json.loads((tmp_path / "e" / "metrics.json").read_text())["sets"]
    assert {key: sets[key] for key in ("coverage", "score", "fewest_samples", "pseudo_count")} == {
        "coverage": 0.75, "score": "1 - p(label)", "fewest_samples": 3, "pseudo_count": 8,
    }  # fmt: skip
    method = sets["methods"]["fedavg"]
    assert method["too_few_samples"] == {"0": ["=berta"]}
    # The scores are 0.25, 0.5, 0.375 of the first, 0.875, 0.75 of the second. Own thresholds: 0.5 and infinity.
    # At 0.5, a set has the classes with at least 0.5, or the most probable one alone. The labels with 0.5 and 0.375
    # are the most probable classes of their samples; that with 0.125 is not.
    own = {name: metric["value"] for name, metric in method["thresholds"]["own"].items()}
    assert own == pytest.approx(
        {
            "coverage": 3 / 4, "coverage_mean": (2 / 3 + 1) / 2, "coverage_bottom_decile": 2 / 3,
            "set_size": (3 + 3) / 4, "set_size_mean": (1 + 3) / 2, "infinite_thresholds": 1,
        }
    )  # fmt: skip
    # Pooled: ceil(6 * 3/4) = 5th of five, 0.875. A set has the classes with at least 0.125: all but for 0.0625.
    pooled = {name: metric["value"] for name, metric in method["thresholds"]["pooled"].items()}
    assert pooled == pytest.approx(
        {
            "coverage": 3 / 4, "coverage_mean": 1 / 2, "coverage_bottom_decile": 0, "set_size": (9 + 2) / 4,
            "set_size_mean": (3 + 2) / 2, "infinite_thresholds": 0,
        }
    )  # fmt: skip
    first, second = read_rows(tmp_path / "e" / "sets_clients.csv")
    assert (first["name"], first["n_validation"], first["n_test"]) == ("anna", "3", "3")
    assert (first["threshold_own"], first["coverage_own"], first["set_size_own"]) == ("0.5", "0.666667", "1")
    assert (second["name"], second["threshold_own"], second["set_size_own"]) == ("=berta", "inf", "3")
    assert (second["threshold_pooled"], second["coverage_pooled"]) == ("0.875", "0")
    table = read_rows(tmp_path / "e" / "sets.csv")
    assert [(row["method"], row["threshold"]) for row in table] == [("fedavg", rule) for rule in conformal.RULES]
    assert [float(row["coverage"]) for row in table[:2]] == [0.75, 0.75]
    page = (tmp_path / "e" / "table.md").read_text()
    assert "Prediction sets at coverage 75 %, calibrated on validation samples:" in page
    assert "| fedavg | own | 75.0 | 66.7 | 1.50 | 1 of 2 |" in page
    assert (
        "own threshold at coverage 75 %: 1 client with fewer than 3 validation samples, whose sets contain all classes:"
        " =berta" in page
    )


def test_prediction_sets_of_several_seeds_have_a_standard_deviation(tmp_path):
    many = make_split([0.5] * 12, [0, 1, 2] * 4, [6, 6])
    test = make_split([0.5, 0.2], [0, 1], [1, 1])
    write_predictions(tmp_path / "a", "fedavg", many, test)
    one = write_predictions(
        tmp_path / "b", "fedavg", make_split([0.5] * 7, [0] * 7, [6, 1]), make_split([0.9, 0.9], [0, 1], [1, 1]), seed=1
    )
    evaluate([tmp_path / "a", one], tmp_path / "e", coverage=0.8)
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    method = metrics["sets"]["methods"]["fedavg"]
    assert method["too_few_samples"] == {"0": [], "1": ["client 1"]}
    own = method["thresholds"]["own"]
    assert (own["coverage"]["value"], own["coverage"]["std_over_seeds"]) == (0.75, pytest.approx(0.5 / math.sqrt(2)))
    assert (own["coverage"]["n"], own["coverage_mean"]["n"]) == (4, 4)
    row = prediction_sets.table(metrics).rows[0]
    assert row[2] == "75.0 ± 35.4"
    assert row[-1] == "0.5 of 2"
    assert any("(fedavg seed 1): client 1" in line for line in prediction_sets.notes(metrics))


def test_coverage_excludes_clients_without_test_samples(tmp_path):
    validation = make_split([0.5] * 9, [0] * 9, [4, 4, 1])
    evaluate(
        [write_predictions(tmp_path / "a", "fedavg", validation, make_split([0.5, 0.5], [0, 1], [1, 1, 0]))],
        tmp_path / "e",
        coverage=0.8,
    )
    method = json.loads((tmp_path / "e" / "metrics.json").read_text())["sets"]["methods"]["fedavg"]
    assert method["too_few_samples"] == {"0": []}
    assert method["thresholds"]["own"]["infinite_thresholds"]["value"] == 0
    assert read_rows(tmp_path / "e" / "sets_clients.csv")[2]["coverage_own"] == ""


@pytest.mark.parametrize(
    ("method", "kwargs"),
    [("ditto", {"tuned": {"lambda": np.ones(2)}}), ("stack", {}), ("fedavg", {"settings": {"report": "best"}})],
)
def test_evaluation_names_methods_that_chose_on_the_calibration_samples(tmp_path, method, kwargs):
    evaluate([write_two_clients(tmp_path / "a", method, **kwargs)], tmp_path / "e", coverage=0.75)
    assert read_choices(tmp_path / "e") == {method}
    evaluate([write_two_clients(tmp_path / "b", "local")], tmp_path / "f", coverage=0.75)
    assert read_choices(tmp_path / "f") == set()


def test_least_coverage_weights_clients_by_test_samples(tmp_path):
    scored = scoring.score([open_artifact(write_two_clients(tmp_path / "a"))], "test", "fedavg", level=0.75)
    facts = scoring.summarize(scored, "test", "fedavg", tried={"fedavg": 5})["sets"]["methods"]["fedavg"]
    bound = conformal.least_coverage(0.75, 3, 5)
    assert bound < 0.5
    # The second client's sets contain all classes.
    assert facts["least_coverage"]["own"] == pytest.approx((3 * bound + 1) / 4)
    assert facts["least_coverage"]["pooled"] == conformal.least_coverage(0.75, 5, 5)
    assert (facts["chose_on_validation"], facts["models_tried"]) == (True, 5)


def test_tuned_comparison_states_the_least_coverage_of_each_method(small, tmp_path, pfl):
    line = ("compare", small.p, "-o", tmp_path / "c", "--methods", "fedavg,local,prior", "--rounds", 1)
    assert pfl(*line, "--model", "logistic", "--tune", 2, "--coverage", 0.8).code == 0
    folder = tmp_path / "c" / "comparison"
    metrics = evaluations.read(open_artifact(folder))
    sets, trials = metrics["sets"]["methods"], {k: v["trials"] for k, v in metrics["tune"]["methods"].items()}
    tried = {label: facts.get("models_tried", 1) for label, facts in sets.items()}
    # Methods on the backbone also depend on the settings that were chosen for fedavg.
    expected = {label: trials.get(label, 1) * (trials["fedavg"] if label == "prior" else 1) for label in sets}
    expected = {label: max(1, number) for label, number in expected.items()}
    assert tried == expected
    assert tried["fedavg"] == tried["local"] == 2
    assert read_choices(folder) == {label for label, number in tried.items() if number > 1}
    text = (folder / "table.md").read_text()
    validation = predictions.read(open_artifact(tmp_path / "c" / "seed-0" / "local"), "validation")
    test = predictions.read(open_artifact(tmp_path / "c" / "seed-0" / "local"), "test")
    for label, number in tried.items():
        bounds = [conformal.least_coverage(0.8, n, number) for n in np.diff(validation.offsets).tolist()]
        least = sets[label].get("least_coverage", {})
        assert (label, bool(least)) == (label, number > 1)
        if least:
            assert least["own"] == pytest.approx(np.average(bounds, weights=np.diff(test.offsets)))
            assert least["pooled"] == conformal.least_coverage(0.8, len(validation.y), number)
            bound = f"{label} {100 * least['own']:.1f} % and {100 * least['pooled']:.1f} %"
            assert f"{bound}, chosen from {number} models" in text
    assert pfl("report", folder, "-o", tmp_path / "page.html").code == 0
    assert "also chose on the validation samples" in (tmp_path / "page.html").read_text()


def test_count_models_counts_only_tunings_with_a_scored_trial():
    chosen = {
        "fedavg": {"trials": 0, "grid": 0, "values": {}},  # all its options were fixed
        "prior": {"trials": 4, "grid": 4, "values": {"weight": 1.0}},
        "ditto": {"trials": 3, "grid": 8, "values": {"lam": 1.0}},
        "local": {"trials": 5, "grid": 9, "values": {}, "problem": "all trials diverged"},
    }
    variants = resolve_variants(["fedavg", "prior", "ditto", "local", "stack"], {}, Settings())
    tried = {"fedavg": 1, "prior": 4, "ditto": 3, "local": 1}
    assert tunings.count_models({"tune": {"methods": chosen}}, variants) == tried
    chosen["fedavg"] = {"trials": 2, "grid": 2, "values": {"training.lr": 0.1}}
    assert tunings.count_models({"tune": {"methods": chosen}}, variants) == {**tried, "fedavg": 2, "prior": 8}


def test_evaluation_without_coverage_is_unchanged(tmp_path):
    outcome = evaluate([write_two_clients(tmp_path / "a")], tmp_path / "e")
    assert "coverage" not in outcome.request
    assert not list((tmp_path / "e").glob("sets*"))
    assert "sets" not in json.loads((tmp_path / "e" / "metrics.json").read_text())


@pytest.mark.parametrize("level", [0, 1, 1.5, math.nan])
def test_evaluate_refuses_a_coverage_outside_0_to_1(tmp_path, level):
    with pytest.raises(UsageError, match="is not between 0 and 1"):
        evaluate([write_two_clients(tmp_path / "a")], tmp_path / "e", coverage=level)
    assert not (tmp_path / "e").exists()


def test_evaluate_refuses_coverage_without_calibration_samples(tmp_path):
    test = make_split([0.5], [0], [1])
    refit = write_predictions(tmp_path / "refit", "fedavg", None, test)
    with pytest.raises(InputError, match=r"no predictions on validation samples.*--refit") as error:
        evaluate([refit], tmp_path / "e", coverage=0.9)
    assert "without --refit" in str(error.value.fix)
    empty = write_predictions(tmp_path / "empty", "fedavg", make_split([], [], [0]), test)
    with pytest.raises(InputError, match="has no validation samples, which --coverage calibrates on") as error:
        evaluate([empty], tmp_path / "e", coverage=0.9)
    assert "--fractions" in str(error.value.fix)
    with pytest.raises(UsageError, match="measured on test samples"):
        evaluate([write_two_clients(tmp_path / "a")], tmp_path / "e", coverage=0.9, split="validation")
    assert not (tmp_path / "e").exists()


def test_prediction_sets_cover_a_simulated_federation(tmp_path):
    """The whole way: stored answers of 40 clients whose labels are drawn from the probabilities themselves."""
    rng = np.random.default_rng(0)

    def drawn(sizes):
        p = rng.dirichlet(np.full(5, 0.7), size=sum(sizes)).astype(np.float32)
        y = np.minimum((p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1), 4)
        return SplitPredictions({"p": p}, y, np.arange(len(y)), np.cumsum([0, *sizes]))

    write_predictions(tmp_path / "a", "fedavg", drawn([30] * 40), drawn([100] * 40))
    evaluate([tmp_path / "a"], tmp_path / "e", coverage=0.8)
    rules = json.loads((tmp_path / "e" / "metrics.json").read_text())["sets"]["methods"]["fedavg"]["thresholds"]
    for rule, most in (("own", 1 / 31), ("pooled", 1 / 1201), ("shrunk", 1 / 41)):
        # 4,000 test samples; thresholds vary too: an own one has a coverage with variance 0.8 * 0.2 / 32.
        calibration = {"own": 40 * 32, "pooled": 1202, "shrunk": 1202}[rule]
        deviation = math.sqrt(0.8 * 0.2 * (1 / 4000 + 1 / calibration))
        value = rules[rule]["coverage"]["value"]
        assert 0.8 - 4 * deviation < value < 0.8 + most + 4 * deviation, rule
        assert 1 <= rules[rule]["set_size"]["value"] < 5


def read_client_names(artifact):
    return codebook.read(open_artifact(artifact)).clients


@pytest.fixture(scope="module")
def queries_file(small, tmp_path_factory):
    """The stored test samples of the first client as a file, in the form of the partition."""
    with h5py.File(small.p / "samples.h5") as file:
        first, last = file["offsets"][2:4]
        x = file["x"][first:last]
    path = tmp_path_factory.mktemp("queries") / "x.npy"
    np.save(path, x)
    return path


@pytest.mark.parametrize("rule", conformal.RULES)
def test_predict_returns_the_prediction_sets_that_evaluate_scores(small, queries_file, rule):
    name = read_client_names(small.knn)[0]
    result = predict(small.knn, queries_file, client=name, coverage=0.8, threshold=rule)
    stored, validation = (predictions.read(open_artifact(small.knn), name) for name in ("test", "validation"))
    count = stored.offsets[1]
    np.testing.assert_array_equal(result.p, stored.parts["p"][:count])
    measured = coverage.measure_sets(open_artifact(small.knn), stored, 0.8)
    assert result.sets.threshold == measured.rules[rule].threshold[0]
    inside = result.sets.members[np.arange(count), stored.y[:count]]
    assert inside.mean() == pytest.approx(measured.rules[rule].coverage[0])
    assert result.sets.members.sum(axis=1).mean() == pytest.approx(measured.rules[rule].size[0])
    assert result.sets.members[np.arange(count), result.labels].all()
    assert result.sets.n_validation == validation.offsets[1]


def test_predict_writes_prediction_sets_in_every_format(small, queries_file, tmp_path):
    name = read_client_names(small.knn)[0]
    result = predict(small.knn, queries_file, client=name, coverage=0.8)
    first = next(csv.DictReader(prediction_file.encode_csv(result).decode().splitlines()))
    assert list(first)[:5] == ["sample", "class", "set", "set_size", "probability"]
    classes = first["set"].split("|")
    assert (len(classes), first["class"] in classes) == (int(first["set_size"]), True)
    line = json.loads(prediction_file.encode_json_lines(result).splitlines()[0])
    assert (line["set"], line["set_size"]) == (classes, len(classes))
    predict(small.knn, queries_file, client=name, coverage=0.8, out=tmp_path / "a.npz")
    arrays = np.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(arrays["set"], result.sets.members)
    np.testing.assert_array_equal(arrays["set_size"], result.sets.members.sum(axis=1))


def test_csv_escapes_separators_in_class_names_of_sets():
    sets = coverage.PredictionSets(0.9, "own", 0.5, 20, np.asarray([[True, True, False]]))
    labels, p = np.asarray([0]), {"p": np.asarray([[0.5, 0.4, 0.1]], np.float32)}
    result = prediction_file.PredictedSamples("fedavg", "a", True, (0,), ("a|b", "c\\", "d"), labels, p, {}, sets)
    assert next(csv.DictReader(prediction_file.encode_csv(result).decode().splitlines()))["set"] == r"a\|b|c\\"


def test_prediction_sets_disclose_no_more_than_the_answers_option_allows(small, queries_file):
    name = read_client_names(small.knn)[0]
    alone = predict(small.knn, queries_file, client=name, coverage=0.8, answers="label")
    assert alone.parts == {}
    # Of the label alone, scores are 0 and 1: a set is the label, or all classes.
    assert set(alone.sets.members.sum(axis=1)) <= {1, len(alone.classes)}
    assert alone.sets.members[np.arange(len(alone.labels)), alone.labels].all()
    rounded = predict(small.knn, queries_file, client=name, coverage=0.8, answers="rounded:1")
    expected = conformal.build_sets(rounded.p, rounded.sets.threshold, rounded.labels)
    np.testing.assert_array_equal(rounded.sets.members, expected)
    assert round(rounded.sets.threshold, 1) == pytest.approx(rounded.sets.threshold)


def test_predict_for_no_client_needs_a_pooled_threshold(small, queries_file, pfl):
    words = ["predict", small.fedavg, queries_file, "--client", "none", "--coverage", "0.8"]
    ran = pfl(*words)
    assert ran.code == 0
    assert "0 validation samples of the client are too few for coverage 80 % (own threshold)" in ran.err
    assert "--threshold shrunk" in ran.err
    ran = pfl(*words, "--threshold", "pooled", "--json")
    facts = json.loads(ran.out)
    assert facts["sets"]["threshold"] == "pooled"
    assert (facts["sets"]["validation_samples"], facts["sets"]["highest_score"] < 1) == (0, True)
    assert facts["answers"][0]["class"] in facts["answers"][0]["set"]


def test_predict_refuses_wrong_coverage_options(small, queries_file, pfl):
    words = ["predict", small.knn, queries_file, "--client", read_client_names(small.knn)[0]]
    for options, message in (
        (["--coverage", "1.0"], "--coverage 1 is not between 0 and 1"),
        (["--threshold", "pooled"], "--threshold needs --coverage"),
        (["--coverage", "0.9", "--threshold", "shrink"], "unknown --threshold 'shrink'"),
    ):
        ran = pfl(*words, *options)
        assert (ran.code, message in ran.err, ran.out) == (2, True, "")


def test_evaluate_coverage_option_is_recorded_and_changes_the_request(small, tmp_path, pfl):
    out = tmp_path / "e"
    ran = pfl("evaluate", small.fedavg, small.knn, "-o", out, "--coverage", "0.9")
    assert ran.code == 0
    assert "Prediction sets at coverage 90 %" in ran.err
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["request"]["coverage"] == 0.9
    assert {"sets.csv", "sets_clients.csv"} <= {*manifest["files"]}
    assert "--coverage 0.9" in manifest["made"]["command"]
    again = pfl("evaluate", small.fedavg, small.knn, "-o", out, "--coverage", "0.9")
    assert (again.code, "up to date" in again.err) == (0, True)
    other = pfl("evaluate", small.fedavg, small.knn, "-o", out, "--coverage", "0.8")
    assert (other.code, "coverage: 0.9 -> 0.8" in other.err) == (4, True)
    shown = pfl("show", out)
    assert "knn-per\tshrunk\t" in shown.out
    verified = pfl("show", out, "--verify")
    assert verified.code == 0
    page = tmp_path / "page.html"
    assert pfl("report", out, "-o", page).code == 0
    text = page.read_text()
    assert "<h3>Prediction sets at coverage 90 %, calibrated on validation samples</h3>" in text
    assert re.search(r"<td>knn-per</td><td>pooled</td>", text)
    assert (tmp_path / "page_data" / "1-sets.csv").read_bytes() == (out / "sets.csv").read_bytes()
    assert (tmp_path / "page_data" / "1-sets_clients.csv").exists()


def test_coverage_can_be_added_to_a_comparison(small, tmp_path, pfl):
    out = tmp_path / "c"
    words = ["compare", small.p, "-o", out, "--methods", "fedavg,local", "--rounds", "1", "--model", "logistic"]
    for options, message in (
        (["--coverage", "1"], "is not between 0 and 1"),
        (["--coverage", "0.9", "--refit"], "learns from the validation samples that --coverage calibrates on"),
    ):
        ran = pfl(*words, *options)
        assert (ran.code, message in ran.err, out.exists()) == (2, True, False)
    assert pfl(*words).code == 0
    ran = pfl(*words, "--coverage", "0.9")
    assert (ran.code, "adds coverage 0.9" in ran.err) == (0, True)
    metrics = json.loads((out / "comparison" / "metrics.json").read_text())
    assert list(metrics["sets"]["methods"]) == ["fedavg", "local"]
    order = [row["label"] for row in metrics["methods"]]
    assert list(dict.fromkeys(row["method"] for row in read_rows(out / "comparison" / "sets.csv"))) == order
    kept = pfl(*words)
    assert (kept.code, "up to date" in kept.err) == (0, True)
    other = pfl(*words, "--coverage", "0.8")
    assert (other.code, "coverage: 0.9 -> 0.8" in other.err) == (4, True)


def test_compare_with_coverage_refuses_a_partition_without_validation_samples(tmp_path, pfl):
    assert pfl("partition", "writers", "-o", tmp_path / "p", "--clients", "3", "--fractions", "0.8,0,0.2").code == 0
    ran = pfl("compare", tmp_path / "p", "-o", tmp_path / "c", "--methods", "fedavg,local", "--coverage", "0.9")
    assert (ran.code, "has no validation samples, which --coverage calibrates on" in ran.err) == (3, True)
    assert not (tmp_path / "c").exists()
