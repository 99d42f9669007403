"""Scores worked out by hand, and the evaluation step on predictions made up for it."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from helpers import store_predictions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.predictions import Predictions, SplitPredictions
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.evaluate import evaluate
from pflcli.core import config, methods, scores
from pflcli.core.errors import UsageError
from pflcli.core.settings import Settings
from pflcli.core.simulation import heterogeneity
from pflcli.evaluation.charts import clients as pictures
from pflcli.evaluation.metrics.client_relations import list_weights, summarize_attention
from pflcli.workflow.training import run_request


def test_per_client_mean_is_nan_for_clients_without_samples():
    actual = scores.per_client(np.asarray([1, 0, 1, 1]), np.asarray([0, 0, 2, 2, 3, 4, 4]))
    np.testing.assert_array_equal(actual, [np.nan, 0.5, np.nan, 1, 1, np.nan])
    assert len(scores.per_client(np.zeros(0), np.asarray([0]))) == 0


@pytest.mark.parametrize(("m", "place"), [(1, 1), (5, 1), (10, 1), (11, 2), (60, 6), (61, 7)])
def test_bottom_decile_is_the_10th_percentile_client(m, place):
    values = np.random.default_rng(0).permutation(np.arange(1.0, m + 1))
    assert scores.bottom_decile(np.append(values, np.nan)) == place


def test_macro_precision_matches_a_hand_computed_value():
    p = np.eye(4)[[0, 0, 1, 1, 1, 0]]
    y = np.asarray([0, 1, 1, 1, 0, 2])
    # Class 0: 1 of 3, class 1: 2 of 3, class 2: never predicted, class 3: does not occur.
    assert scores.macro_precision(p, y) == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert math.isnan(scores.macro_precision(p[:0], y[:0]))


def test_calibration_error_matches_hand_computed_values():
    p = np.asarray([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [1.0, 0.0]])
    y = np.asarray([0, 1, 1, 0])
    # Bins: .9 twice (half right), .6 once (right), 1.0 once (right).
    assert scores.calibration_error(p, y) == pytest.approx((2 * abs(0.9 - 0.5) + abs(0.6 - 1) + 0) / 4)
    # A confidence of exactly 1 belongs to the last bin, with 0.95: one of the two predictions is right.
    p = np.asarray([[0.95, 0.05], [1.0, 0.0]])
    assert scores.calibration_error(p, np.asarray([0, 1])) == pytest.approx((0.95 + 1 - 1) / 2)
    # The last of 15 bins begins at 14/15 = 0.933.
    p = np.asarray([[0.9, 0.1], [0.934, 0.066]])
    assert scores.calibration_error(p, np.asarray([0, 1])) == pytest.approx((0.1 + 0.934) / 2)


def test_log_loss_matches_hand_computed_values():
    actual = scores.log_loss(np.asarray([[0.5, 0.5], [1.0, 0.0]]), np.asarray([1, 1]))
    np.testing.assert_allclose(actual, [math.log(2), -math.log(1e-12)])


def test_weighted_mean_leaves_out_clients_without_samples():
    assert scores.weighted_mean(np.asarray([1.0, np.nan, 0.0]), np.asarray([3, 0, 1])) == 0.75


def test_jensen_shannon_matches_hand_computed_values():
    """(1, 0) and (1/2, 1/2) lie about (3/4, 1/4): half of log2(4/3) + (log2(2/3) + log2(2)) / 2."""
    p, q = np.asarray([1.0, 0.0]), np.asarray([0.5, 0.5])
    expected = (math.log2(4 / 3) + (math.log2(2 / 3) + 1) / 2) / 2
    assert heterogeneity.jensen_shannon(p, q) == pytest.approx(expected)
    assert heterogeneity.jensen_shannon(q, p) == pytest.approx(expected)
    assert heterogeneity.jensen_shannon(p, p) == 0
    assert heterogeneity.jensen_shannon(p, p[::-1]) == 1


def test_label_divergence_matches_hand_computed_values():
    # Of all samples 3/4 and 1/4, and not 2/3 and 1/3 as of the mean of the clients' distributions.
    counts = np.asarray([[2, 0, 0], [0, 0, 0], [0, 2, 0], [4, 0, 0]])
    # About the middles (7/8, 1/8) and (3/8, 5/8) of each client's distribution and that of all samples.
    to_first = (math.log2(8 / 7) + 3 / 4 * math.log2(6 / 7) + 1 / 4 * math.log2(2)) / 2
    to_second = (math.log2(8 / 5) + 3 / 4 * math.log2(2) + 1 / 4 * math.log2(2 / 5)) / 2
    assert heterogeneity.divergence_from_overall(counts) == pytest.approx((2 * to_first + to_second) / 3)
    # Three pairs of clients with samples; two of them share no label, one has the same.
    assert heterogeneity.divergence_between_clients(counts, np.random.default_rng(0)) == pytest.approx(2 / 3)
    assert math.isnan(heterogeneity.divergence_from_overall(counts[1:2]))
    assert math.isnan(heterogeneity.divergence_between_clients(counts[:2], np.random.default_rng(0)))


def test_label_divergence_of_sampled_pairs_approximates_all_pairs():
    counts = np.random.default_rng(0).integers(0, 20, (150, 4))
    exact, sampled = (
        heterogeneity.divergence_between_clients(counts, np.random.default_rng(1), pairs=n) for n in (20_000, 2_000)
    )
    assert sampled == pytest.approx(exact, rel=0.1)
    assert sampled != exact
    # No client is paired with itself: among clients with a label each, no pair shares one.
    assert heterogeneity.divergence_between_clients(np.eye(50, dtype=int), np.random.default_rng(0), pairs=1000) == 1


@pytest.mark.parametrize(("pairs", "draws"), [(9, True), (10, False)])
def test_label_divergence_samples_pairs_only_above_the_limit(pairs, draws):
    """Five clients make ten pairs."""
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    heterogeneity.divergence_between_clients(np.eye(5, dtype=int), rng, pairs=pairs)
    assert (rng.bit_generator.state != before) == draws


SIZES, Y = [4, 0, 2], np.asarray([0, 1, 0, 1, 1, 1])


def store(folder, method, guesses, *, seed=0, baseline=None, options=None, settings=None, shift=0):
    """Predictions that guess these classes, for three clients of 4, 0 and 2 samples."""
    parts = {"p": np.eye(2, dtype=np.float32)[guesses] * 0.8 + 0.1}
    if baseline is not None:
        parts["global"] = np.eye(2, dtype=np.float32)[baseline]
    answers = SplitPredictions(parts, Y, np.arange(6) + shift, np.cumsum([0, *SIZES]))
    request = {"method": method, "options": options or {}, "settings": settings or {}, "seed": seed}
    stored = Predictions({"test": answers}, {"lambda": np.asarray([0.1, 0.5, 0.9])})
    return store_predictions(folder, request, stored, seconds_inputs=1.5, bytes_up=10**6, bytes_down=2 * 10**6)


def metrics(out):
    text = (out / "metrics.json").read_text()
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_evaluation_matches_hand_computed_metrics(tmp_path):
    base = store(tmp_path / "base", "fedavg", [0, 0, 0, 0, 1, 0])  # 2 of 4, 1 of 2
    artifact = store(tmp_path / "mine", "mine", [0, 1, 0, 1, 1, 0])  # 4 of 4, 1 of 2
    evaluate([base, artifact], tmp_path / "e")
    scores = {method["label"]: method["metrics"] for method in metrics(tmp_path / "e")["methods"]}
    values = {name: metric["value"] for name, metric in scores["mine"].items()}
    assert values["accuracy"] == pytest.approx(5 / 6)
    assert values["accuracy_mean"] == pytest.approx(0.75)
    assert values["bottom_decile"] == values["worst"] == 0.5
    assert values["gain"] == pytest.approx(2 / 6)
    assert (values["better_off"], values["worse_off"]) == (0.5, 0)
    assert values["megabytes"] == 3
    assert values["seconds"] > 1.5
    assert scores["fedavg"]["gain"]["value"] == 0
    assert scores["mine"]["accuracy"]["n"] == 2  # the client without samples does not count
    for metric in scores["mine"].values():
        assert metric["unit"]
        assert metric["weighting"]
    rows = list(csv.DictReader((tmp_path / "e" / "clients.csv").open()))
    assert [row["accuracy"] for row in rows[:3]] == ["1", "", "0.5"]
    assert [row["lambda"] for row in rows[:3]] == ["0.1", "0.5", "0.9"]
    assert rows[0]["gain"] == "0.5"


def test_evaluation_uses_the_stored_global_model_as_baseline(tmp_path):
    artifact = store(tmp_path / "mine", "mine", [0, 1, 0, 1, 1, 0], baseline=[0, 0, 0, 0, 1, 0])
    evaluate([artifact], tmp_path / "e")
    evaluation = metrics(tmp_path / "e")
    assert evaluation["baseline"] == "global"
    assert evaluation["methods"][0]["metrics"]["gain"]["value"] == pytest.approx(2 / 6)


def test_evaluation_without_a_baseline_has_no_gain(tmp_path):
    evaluate([store(tmp_path / "mine", "mine", [0] * 6)], tmp_path / "e")
    assert "gain" not in metrics(tmp_path / "e")["methods"][0]["metrics"]


def test_predictions_on_other_samples_are_not_used_as_baseline(tmp_path):
    base = store(tmp_path / "base", "fedavg", [0] * 6, shift=100)
    evaluate([base, store(tmp_path / "mine", "mine", [1] * 6)], tmp_path / "e")
    scores = {method["label"]: method["metrics"] for method in metrics(tmp_path / "e")["methods"]}
    assert "gain" not in scores["mine"]


def test_seeds_are_averaged_into_one_row_with_their_standard_deviation(tmp_path):
    artifacts = [store(tmp_path / str(seed), "mine", [seed, 1, 0, 1, 1, 1], seed=seed) for seed in (0, 1)]
    evaluate(artifacts, tmp_path / "e")
    (row,) = metrics(tmp_path / "e")["methods"]
    assert row["seeds"] == [0, 1]
    assert row["metrics"]["accuracy"]["value"] == pytest.approx((1 + 5 / 6) / 2)
    assert row["metrics"]["accuracy"]["std_over_seeds"] == pytest.approx(np.std([1, 5 / 6], ddof=1))


def test_methods_of_the_same_name_get_different_labels(tmp_path):
    artifacts = [store(tmp_path / str(k), "mine", [0] * 6, options={"k": k, "same": 1}) for k in (1, 2)]
    evaluate(artifacts, tmp_path / "e")
    assert [row["label"] for row in metrics(tmp_path / "e")["methods"]] == ["mine k=1", "mine k=2"]
    twins = [store(tmp_path / name, "mine", [0] * 6, shift=shift) for name, shift in (("a", 0), ("b", 9))]
    with pytest.raises(UsageError, match="twice"):
        evaluate([twins[0], twins[0]], tmp_path / "f")
    with pytest.raises(UsageError, match="baseline 'ditto'"):
        evaluate(artifacts, tmp_path / "f", baseline="ditto")


def test_labels_of_runs_have_only_what_differs_from_other_runs_and_from_defaults(tmp_path):
    changes = [{}, {"lr": 0.03}, {"lr": 0.03, "dp_noise": 0.5, "dp_delta": 1e-5}, {"augment": ("flip", "crop")}]
    runs = [("ditto", {}, each) for each in changes]
    runs += [("ditto", {"lam": 2.0}, {}), ("fedavg", {}, {"lr": 0.5})]
    artifacts = [
        store(
            tmp_path / str(index),
            method,
            [0] * 6,
            options=config.plain(config.build(methods.load(method).Config, options, method)),
            settings=run_request.recorded_settings(Settings(model="mlp", **settings)),
        )
        for index, (method, options, settings) in enumerate(runs)
    ]
    evaluate(artifacts, tmp_path / "e")
    labels = [row["label"] for row in metrics(tmp_path / "e")["methods"]]
    private = "ditto dp_delta=1e-05 dp_noise=0.5 lr=0.03"
    assert {*labels} == {"ditto", "ditto lr=0.03", private, "ditto augment=flip,crop", "ditto lam=2.0", "fedavg"}


def test_evaluation_plots_are_deterministic(tmp_path):
    base, other = store(tmp_path / "base", "fedavg", [0] * 6), store(tmp_path / "mine", "mine", [1] * 6)
    for out in ("e", "f"):
        evaluate([base, other], tmp_path / out)
    first, second = ((tmp_path / out / "accuracy.png").read_bytes() for out in ("e", "f"))
    assert first == second
    assert first.startswith(b"\x89PNG")
    assert "| fedavg | 1 | 33.3 |" in (tmp_path / "e" / "table.md").read_text()


def test_predictions_refuse_rows_that_are_not_probabilities(tmp_path):
    answers = SplitPredictions({"p": np.full((6, 2), 0.4, np.float32)}, Y, np.arange(6), np.cumsum([0, *SIZES]))
    draft = ArtifactSpec("predictions", {})
    with ArtifactWriter(tmp_path / "p", draft).prepare() as work, pytest.raises(ValueError, match="not a probability"):
        predictions.write(work, Predictions({"test": answers}))


def test_summarize_attention_matches_hand_computed_values():
    first = np.zeros((2, 4, 4))
    first[0, 0, 1:] = [0.5, 0.25, 0.25]
    first[0, 1, [0, 2]] = [0.9, 0.1]  # was not sent the fourth
    second = np.zeros((2, 4, 3))
    second[0, :3] = [[0.2, 0.3, 0.5], [0.4, 0.6, 0.0], [0.6, 0.0, 0.4]]  # the third was sent no other's
    one, empty = summarize_attention(first, second, [7, 8], np.asarray([0, 0, 1, 1]))
    assert (one["round"], one["clients"], empty["clients"]) == (7, 3, 0)
    assert [one[name] for name in ("own", "attended", "global")] == pytest.approx([0.4, 0.3, 0.3])
    assert one["largest"] == pytest.approx(0.7)
    entropy = [0.5 * math.log(2) + 0.5 * math.log(4), -0.9 * math.log(0.9) - 0.1 * math.log(0.1)]
    assert one["entropy"] == pytest.approx(np.mean(entropy))
    assert one["entropy_if_even"] == pytest.approx((math.log(3) + math.log(2)) / 2)
    assert one["own_group"] == pytest.approx((0.5 + 0.9) / 2)
    assert one["own_group_if_even"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert math.isnan(empty["own"])
    assert math.isnan(empty["entropy"])
    assert "own_group" not in summarize_attention(first, second, [7, 8], None)[0]
    rows = list_weights(first, second, [7, 8], ["a", "b", "c", "d"])
    assert [7, "b", 1, "c", 0.1] in rows
    assert [7, "c", 2, "global", 0.4] in rows
    assert len(rows) == 5 + 7


def record_pictures(monkeypatch):
    """What is drawn by client, instead of the picture."""
    drawn_pictures = []

    def by_client(names, accuracy, baseline, title, metric):
        drawn_pictures.append((names, {label: values.tolist() for label, values in accuracy.items()}, baseline, title))
        return draw(names, accuracy, baseline, title, metric)

    draw = pictures.draw_clients
    monkeypatch.setattr(pictures, "draw_clients", by_client)
    return drawn_pictures


def test_few_clients_are_plotted_individually(tmp_path, monkeypatch):
    """Seeds averaged, and clients without test samples left out."""
    drawn_pictures = record_pictures(monkeypatch)
    artifacts = [
        store(tmp_path / f"{name}{seed}", name, guesses, seed=seed)
        for seed in (0, 1)
        for name, guesses in (("fedavg", [0] * 6), ("mine", [0, 1, 0, seed, 1, 1]))
    ]
    evaluate(artifacts, tmp_path / "e")
    ((names, accuracy, baseline, title),) = drawn_pictures
    assert names == ["client 0", "client 2"]
    assert accuracy == {"fedavg": [0.5, 0.0], "mine": [(0.75 + 1) / 2, 1.0]}
    assert (baseline, title) == ("fedavg", "Accuracy by client, test split, mean of 2 seeds")


def test_clients_that_differ_by_seed_are_not_plotted_individually(tmp_path, monkeypatch):
    drawn_pictures = record_pictures(monkeypatch)
    artifacts = [store(tmp_path / str(seed), "mine", [0] * 6, seed=seed, shift=10 * seed) for seed in (0, 1)]
    evaluate(artifacts, tmp_path / "e")
    assert drawn_pictures == []


def test_tables_and_plots_show_client_names(small, tmp_path, monkeypatch):
    drawn_pictures = record_pictures(monkeypatch)
    evaluate([small.fedavg, small.knn], tmp_path / "e")
    names = [row["name"] for row in csv.DictReader((small.p / "clients.csv").open())]
    rows = list(csv.DictReader((tmp_path / "e" / "clients.csv").open()))
    assert [row["name"] for row in rows] == names * 2
    assert drawn_pictures[0][0] == names
