"""Gains over what clients reach alone: which row counts, the intervals by hand, and what the decision says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import t

import pflcli
from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.core.tasks import Labels
from pflcli.evaluation import records, training_alone
from pflcli.evaluation.presentation import conclusion
from pflcli.evaluation.presentation.conclusion import ALONE_IS_BETTER, NO_GAIN, NOT_OVER_ALONE, PAYS, WORSE
from pflcli.evaluation.summary import ScoredPredictions


def make_row(label, accuracy, gain, reach=0.02, over=None, *, base=False, **more):
    """The row of a method with gains over fedavg and, with ``over``, over training alone."""
    metrics = {"accuracy": {"value": accuracy, "n": 6}, "gain": {"value": gain, "n": 6, "unit": "fraction"}}
    if not base:
        metrics["gain"] |= {"interval": [gain - reach, gain + reach], "p": 0.01}
    beside = {} if over is None else {"over_alone": {"label": "alone", "value": over[0], "interval": [*over[1:]]}}
    return {"label": label, "method": label, "seeds": [0, 1, 2], "metrics": metrics, **beside, **more}


def conclude(*rows, fedavg=(-0.05, -0.08, -0.02)):
    return conclusion.conclude([make_row("fedavg", 0.8, 0.0, over=fedavg, base=True, personal=False), *rows], "fedavg")


def test_personalization_pays_if_a_method_is_better_than_fedavg_and_than_training_alone():
    """The best of those that are: another one may have a higher score."""
    found = conclude(
        make_row("ditto", 0.9, 0.1, over=(0.05, -0.01, 0.11)), make_row("knn-per", 0.88, 0.08, over=(0.03, 0.01, 0.05))
    )
    assert (found.answer, found.best, found.shown, found.better) == (PAYS, "ditto", "knn-per", ["ditto", "knn-per"])
    assert found.alone == "alone"
    assert found.sentence == (
        "Personalization pays here: knn-per, +8.0 points [+6.0, +10.0] over fedavg, and +3.0 points [+1.0, +5.0] over "
        "training alone (alone); ditto has the best accuracy, but its gain over training alone is not shown, +5.0 "
        "points [-1.0, +11.0]; 1 of 2 methods is shown to gain over both"
    )


def test_a_gain_over_fedavg_is_not_enough():
    found = conclude(make_row("ditto", 0.85, 0.05, over=(0.01, -0.01, 0.03)))
    assert (found.answer, found.better, found.shown) == (NOT_OVER_ALONE, ["ditto"], "ditto")
    assert found.sentence == (
        "No gain over training alone was shown: ditto, the best method, has +1.0 points [-1.0, +3.0] over alone, and "
        "+5.0 points [+3.0, +7.0] over fedavg (More seeds may decide it: type --seeds 0,1,2,3,4)"
    )


def test_training_alone_is_better_than_the_best_method():
    found = conclude(make_row("ditto", 0.85, 0.05, over=(-0.03, -0.05, -0.01)))
    assert found.answer == ALONE_IS_BETTER
    assert found.sentence == (
        "Training alone is better here: ditto, the best method, has -3.0 points [-5.0, -1.0] over alone, and +5.0 "
        "points [+3.0, +7.0] over fedavg"
    )


def test_training_alone_does_not_pay_when_it_is_ranked_itself():
    local = make_row("local", 0.86, 0.06)
    found = conclude(local)
    assert found.answer == ALONE_IS_BETTER
    assert found.sentence == (
        "Training alone is better here: fedavg, the best method, has -5.0 points [-8.0, -2.0] over alone"
    )
    beside = conclude(local, make_row("ditto", 0.85, 0.05, over=(0.01, 0.005, 0.03)))
    assert (beside.answer, beside.best, beside.shown) == (PAYS, "local", "ditto")
    assert "local has the best accuracy, but its clients train alone, +6.0 points" in beside.sentence


@pytest.mark.parametrize(
    ("fedavg", "advice"),
    [
        ((-0.05, -0.08, -0.02), "train alone, over which fedavg has -5.0 points [-8.0, -2.0]"),
        ((0.05, 0.02, 0.08), "stay with fedavg, which has +5.0 points [+2.0, +8.0] over training alone"),
        ((0.0, -0.02, 0.02), "stay with fedavg"),
    ],
)
def test_without_a_gain_over_fedavg_the_advice_depends_on_training_alone(fedavg, advice):
    none = conclude(make_row("ditto", 0.8, 0.0, over=fedavg), fedavg=fedavg)
    assert (none.answer, f"No gain was shown: {advice}; gains above 2.0 points" in none.sentence) == (NO_GAIN, True)
    worse = conclude(make_row("ditto", 0.7, -0.1, over=fedavg), fedavg=fedavg)
    assert (worse.answer, worse.sentence.endswith(f": {advice}")) == (WORSE, True)


# The baseline is one way of training alone, and another way has the better score on validation samples


TEN = "+10.0 points [+8.0, +12.0]"


def conclude_over_alone(*rows, base=(-0.05, -0.08, -0.02)):
    """Gains over the baseline `alone` and, as ``over_alone``, over `local`."""
    rows = [make_row("alone", 0.8, 0.0, over=base, base=True, reference=True, personal=True), *rows]
    for row in rows:
        row.get("over_alone", {}).update(label="local")
    return conclusion.conclude(rows, "alone")


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ((0.05, 0.01, 0.09), f"A gain is shown: ditto, {TEN} over alone, and +5.0 points [+1.0, +9.0] over local"),
        (
            (0.05, -0.01, 0.11),
            "No gain over local was shown: ditto, the best method, has +5.0 points [-1.0, +11.0] over local, and "
            f"{TEN} over alone (More seeds may decide it: type --seeds 0,1,2,3,4)",
        ),
        (
            (-0.05, -0.09, -0.01),
            "Local is better here: ditto, the best method, has -5.0 points [-9.0, -1.0] over local, and "
            f"{TEN} over alone",
        ),
    ],
    ids=["pays", "not-shown", "worse"],
)
def test_a_gain_over_the_baseline_alone_is_said_once(over, expected):
    found = conclude_over_alone(make_row("ditto", 0.9, 0.1, over=over, personal=True))
    assert found.sentence == expected
    assert "training alone" not in found.sentence


def test_the_advice_beside_the_baseline_alone_names_the_other_way():
    row = make_row("ditto", 0.7, -0.1, over=(-0.15, -0.2, -0.1))
    assert conclude_over_alone(row).sentence == (
        "ditto is shown to be worse than alone, -10.0 points [-12.0, -8.0]: take local, over which alone has -5.0 "
        "points [-8.0, -2.0]"
    )
    stays = conclude_over_alone(row, base=(0.05, 0.02, 0.08)).sentence
    assert stays.endswith(": stay with alone, which has +5.0 points [+2.0, +8.0] over local")
    local = conclude_over_alone(make_row("local", 0.85, 0.05)).sentence
    assert local == "A gain is shown: local, +5.0 points [+3.0, +7.0] over alone"


def test_both_intervals_of_few_clients_name_each_training_alone_once():
    """Also where the baseline is none."""
    spread = {"these_clients": {"clients": 4, "interval": [0.01, 0.02]}}
    for baseline, conclude_over, name in (
        ("fedavg", conclude, "training alone"),
        ("alone", conclude_over_alone, "local"),
    ):
        row = make_row("ditto", 0.9, 0.1, over=(0.05, 0.01, 0.09))
        row["metrics"]["gain"] |= spread
        row["over_alone"] |= spread
        assert conclude_over(row).scope == (
            f"For clients like these, ditto has {TEN} over {baseline} and +5.0 points [+1.0, +9.0] "
            f"over {name}. For these 4 clients, with other seeds and splits: [+1.0, +2.0] over {baseline} and "
            f"[+1.0, +2.0] over {name}"
        )


# Which row counts, and by how much a method gains over it


def make_run(method, seed, right, validation=math.nan):
    """Predictions of four clients with ten samples each, of which so many are right."""
    y = np.tile(np.arange(10) < np.asarray(right)[:, None], 1).ravel().astype(np.int64)
    p = np.tile(np.asarray([0.1, 0.9], np.float32), (40, 1))  # right where the label is 1
    answers = SplitPredictions({"p": p}, np.ones(40, np.int64), np.arange(40), 10 * np.arange(5))
    answers.parts["p"][y == 0] = [0.9, 0.1]
    fields, _ = records.make(answers, ("accuracy",), Labels(2), {})
    return ScoredPredictions(label=method, method=method, seed=seed, validation=validation, **fields)


def add(groups, baseline="fedavg", level=0.95, compared=1):
    rows = [{"label": label, "metrics": {"gain": {"p": 0.1}}} for label in groups]
    for row in rows[1 + compared :]:
        row["reference"] = True
    names = {label: {item.seed: np.asarray([*"abcd"]) for item in items} for label, items in groups.items()}
    training_alone.add_gains(rows, groups, names, baseline, level)
    return {row["label"]: row.get("over_alone") for row in rows}


def test_the_gain_over_training_alone_is_paired_by_client():
    groups = {
        "fedavg": [make_run("fedavg", 0, [5, 5, 5, 5])],
        "ditto": [make_run("ditto", 0, [9, 8, 7, 8])],
        "alone": [make_run("alone", 0, [6, 7, 6, 5], 0.7)],
    }
    found = add(groups)
    difference = np.asarray([0.3, 0.1, 0.1, 0.3])
    reach = t.ppf(0.975, 3) * difference.std(ddof=1) / 2
    assert found["alone"] is None
    assert found["ditto"]["label"] == "alone"
    assert found["ditto"]["value"] == pytest.approx(0.2)
    np.testing.assert_allclose(found["ditto"]["interval"], [0.2 - reach, 0.2 + reach])
    assert found["fedavg"]["value"] == pytest.approx(-0.1)
    assert add(groups, baseline="alone") == dict.fromkeys(groups)
    two = add({**groups, "fedprox": groups["fedavg"]} | {"alone": groups["alone"]}, compared=2)
    assert two["ditto"]["interval"][0] == pytest.approx(0.2 - t.ppf(0.9875, 3) * difference.std(ddof=1) / 2)


def test_the_better_row_by_validation_samples_counts_and_both_if_scores_are_unknown():
    """Not the better one by test samples."""
    base = {"fedavg": [make_run("fedavg", 0, [5, 5, 5, 5])], "ditto": [make_run("ditto", 0, [9, 8, 7, 8])]}
    for of_alone, of_local, expected in ((0.7, 0.6, "alone"), (0.6, 0.7, "local"), (math.nan, 0.7, "alone")):
        alone, local = [make_run("alone", 0, [8, 8, 8, 8], of_alone)], [make_run("local", 0, [2, 2, 2, 3], of_local)]
        assert add({**base, "alone": alone, "local": local})["ditto"]["label"] == expected
    assert add(base) == dict.fromkeys(base)


def test_every_command_that_makes_a_table_compares_with_training_alone(pfl, small, tmp_path):
    words = ("--model", "logistic", "--rounds", 2, "--threads", 1)
    for method in ("fedavg", "ditto", "alone"):
        assert pfl("personalize", method, small.p, "-o", tmp_path / method, *words).code == 0
    made = [tmp_path / method for method in ("fedavg", "ditto", "alone")]
    assert pfl("evaluate", *made, "-o", tmp_path / "e").code == 0
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    rows = {row["label"]: row for row in metrics["methods"]}
    accuracy = {label: row["metrics"]["accuracy"]["value"] for label, row in rows.items()}
    assert rows["ditto"]["over_alone"]["value"] == pytest.approx(accuracy["ditto"] - accuracy["alone"])
    assert metrics["conclusion"]["alone"] == "alone"
    assert "over_alone" not in rows["alone"]
    assert pfl("evaluate", *made, "-o", tmp_path / "b", "--baseline", "alone").code == 0
    table = json.loads((tmp_path / "b" / "metrics.json").read_text())
    gains = {row["label"]: row["metrics"]["gain"]["value"] for row in table["methods"]}
    assert gains["ditto"] == pytest.approx(accuracy["ditto"] - accuracy["alone"])
    assert {*table["conclusion"]["judged"]} == {"fedavg", "ditto"}
    frame = pflcli.table({path.name: str(path) for path in made})
    assert metrics["conclusion"]["sentence"].partition(" (")[0] == frame.attrs["conclusion"][0].partition(" (")[0]
