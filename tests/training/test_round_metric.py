"""The metric by which rounds are compared: ``--metric`` reaches the best round, patience, and the trials of tuning."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from pflcli import EarlyStopping, Federation, simulate
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.commands.tune import tune
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.settings import Settings
from pflcli.workflow.training.run_settings import compare_rounds_by

SETTINGS = {"model": "mlp", "rounds": 8, "participation": 1.0, "eval_every": 1, "lr": 0.3, "epochs": 5}
BEST = {**SETTINGS, "report": "best"}


def make_federation(classes=2):
    """Return clients with so few samples and so noisy labels that models become too sure of themselves."""
    draw = np.random.default_rng(6)
    x = draw.normal(size=(240, 4)).astype(np.float32)
    y = np.digitize(x[:, 0] + draw.normal(size=240), np.linspace(-1, 1, classes + 1)[1:-1])
    return Federation.from_arrays(x, y, np.arange(240) % 4)


def read_rounds(folder):
    with (folder / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def best_round(rows, column, sign=1):
    return max(rows, key=lambda row: sign * float(row[column]))["round"]


def read_run(folder):
    """Return the request's metric, the reported round, and the best rounds by accuracy and by log-loss."""
    artifact, rows = open_artifact(folder), read_rounds(folder)
    loss = next((name for name in ("personal_log_loss", "validation_log_loss") if rows[0].get(name)), None)
    accuracy = "personal_accuracy" if rows[0]["personal_accuracy"] else "validation_accuracy"
    by_loss = None if loss is None else int(best_round(rows, loss, -1))
    manifest = artifact.manifest
    metric = manifest.request["settings"].get("round_metric")
    return metric, manifest.summary["reported_round"], int(best_round(rows, accuracy)), by_loss


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
@pytest.mark.parametrize("metric", ["log_loss", "auroc", "sensitivity"])
def test_best_round_is_that_of_the_metric(method, metric):
    federation = make_federation()
    result = simulate(method, federation, quiet=True, round_metric=metric, **BEST)
    column = f"{'validation' if method == 'fedavg' else 'personal'}_{metric}"
    scores = result.rounds[column] * catalogue.METRICS[metric].sign
    number = int(scores.idxmax())
    found, sizes = result.predictions["validation"], result.run.federation.sizes("validation")
    entry, offsets = catalogue.METRICS[metric], np.concatenate([[0], np.cumsum(sizes)])
    score = entry.score_answers(found.p, found.y, offsets)
    assert result.rounds.loc[number, column] == pytest.approx(score, rel=1e-6)
    fewer = simulate(method, federation, quiet=True, **{**SETTINGS, "rounds": number})
    np.testing.assert_array_equal(result.predictions["test"].p, fewer.predictions["test"].p)


def test_best_rounds_by_accuracy_and_by_a_metric_differ():
    rounds = simulate("fedavg", make_federation(), quiet=True, round_metric="log_loss", **BEST).rounds
    assert rounds["validation_accuracy"].idxmax() != rounds["validation_log_loss"].idxmin()
    usual = simulate("fedavg", make_federation(), quiet=True, **BEST).rounds
    assert "validation_log_loss" not in usual
    assert usual["validation_accuracy"].tolist() == rounds["validation_accuracy"].tolist()


def test_patience_waits_for_the_metric():
    rounds = simulate("fedavg", make_federation(), quiet=True, round_metric="log_loss", patience=2, **SETTINGS).rounds
    best = int(rounds["validation_log_loss"].idxmin())
    assert len(rounds) == best + 2 < SETTINGS["rounds"]
    usual = simulate("fedavg", make_federation(), quiet=True, patience=2, **SETTINGS).rounds
    assert len(usual) != len(rounds)
    called = simulate(
        "fedavg", make_federation(), quiet=True, round_metric="log_loss", callbacks=EarlyStopping(2), **BEST
    )
    assert len(called.rounds) == len(rounds)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"round_metric": "loss"}, "unknown metric 'loss'"),
        ({"round_metric": "specificity"}, "specificity is defined for two classes, and there are 3"),
    ],
)
def test_unsuitable_metrics_are_refused(settings, message, small, tmp_path):
    with pytest.raises(UsageError, match=message):
        simulate("fedavg", make_federation(3), quiet=True, **{**BEST, **settings})
    with pytest.raises(UsageError, match=message.replace("3", r"\d+")):
        personalize("fedavg", small.p, tmp_path / "a", settings={**BEST, **settings})
    with pytest.raises(UsageError, match=message.replace("3", r"\d+")):
        personalize("fedavg", small.b, tmp_path / "a", settings=settings)


def test_metric_without_effect_is_reported_and_not_recorded(small, tmp_path):
    with pytest.warns(UserWarning, match='round_metric="log_loss" has no effect without report="best" or patience'):
        simulate("fedavg", make_federation(), quiet=True, round_metric="log-loss", **SETTINGS)
    personalize("local", small.p, tmp_path / "a", settings=SETTINGS)
    outcome = personalize("local", small.p, tmp_path / "a", settings={**SETTINGS, "round_metric": "log_loss"})
    assert outcome.decision == "up to date"
    train_global(small.p, tmp_path / "b", settings=BEST)
    assert train_global(small.p, tmp_path / "b", settings={**BEST, "round_metric": "accuracy"}).decision == "up to date"


def test_metric_of_a_comparison_chooses_the_rounds_of_all_runs(small, tmp_path):
    settings = {**BEST, "lr": 0.2}
    out = tmp_path / "c"
    compare(small.p, out, methods=["fedavg", "ditto"], metrics=["log_loss"], settings=settings, references=False)
    runs = [read_run(out / "seed-0" / name) for name in ("backbone", "ditto")]
    for metric, reported, by_accuracy, by_loss in runs:
        assert (metric, reported) == ("log_loss", by_loss)
        assert reported != by_accuracy
    assert "the reported round is the best one by validation log_loss" in (out / "comparison" / "table.md").read_text()
    again = compare(small.p, out, methods=["fedavg", "ditto"], settings=settings, references=False)
    assert again.decision == "up to date"


def test_metric_of_one_method_in_a_comparison_reaches_it(small, tmp_path):
    options = {"ditto": {"training.report": "best"}}
    out = tmp_path / "c"
    settings = {**SETTINGS, "rounds": 3}
    compare(
        small.p, out, methods=["fedavg", "ditto"], metrics=["log_loss"], settings=settings, options=options,
        references=False,
    )  # fmt: skip
    requests = {name: open_artifact(out / "seed-0" / name).manifest.request["settings"] for name in ("fedavg", "ditto")}
    assert requests["ditto"]["round_metric"] == "log_loss"
    assert requests["fedavg"]["round_metric"] is None


def test_trials_choose_rounds_by_the_metric_of_the_tuning(small, tmp_path):
    tune("ditto", small.p, tmp_path / "t", search={"lam": [0.1, 1.0]}, metric="log_loss", settings=BEST)
    (trial, *_) = sorted((tmp_path / "t" / "trials").iterdir())
    metric, reported, _, by_loss = read_run(trial)
    assert (metric, reported) == ("log_loss", by_loss)


def test_a_longer_run_continues_with_the_metric(small, tmp_path):
    settings = {**SETTINGS, "round_metric": "log_loss", "patience": 8}
    personalize("ditto", small.p, tmp_path / "a", settings={**settings, "rounds": 3})
    personalize("ditto", small.p, tmp_path / "a", settings={**settings, "rounds": 6})
    personalize("ditto", small.p, tmp_path / "b", settings={**settings, "rounds": 6})
    one, other = ([{**row, "seconds": ""} for row in read_rounds(tmp_path / name)] for name in "ab")
    assert one == other
    assert len(one) == 6


def test_patience_flat_goes_by_accuracy_and_leaves_the_metric_to_the_best_round():
    assert Settings(patience="flat", round_metric="log_loss").compares_rounds_by is None
    assert Settings(patience="flat", report="best", round_metric="log_loss").compares_rounds_by == "log_loss"
    assert Settings(patience=3, round_metric="log_loss").compares_rounds_by == "log_loss"
    with pytest.warns(UserWarning, match='round_metric="log_loss" has no effect without report="best" or patience'):
        simulate("fedavg", make_federation(), quiet=True, patience="flat", round_metric="log_loss", **SETTINGS)
    assert compare_rounds_by("log_loss", {"patience": "flat"}) == {"patience": "flat"}
    assert compare_rounds_by("log_loss", {"patience": 3}) == {"patience": 3, "round_metric": "log_loss"}
