"""The best round by validation: its choice, its stored state, and its mention in evaluations."""

from __future__ import annotations

import csv
import importlib
import json
import math

import numpy as np
import pytest
import torch

import worlds
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.commands.personalize import personalize
from pflcli.core import methods, registry
from pflcli.core.simulation import personal_accuracy as personal
from pflcli.core.simulation.progress import tables, update_best
from pflcli.methods import ditto

METHODS = [name for name in registry.names("methods") if methods.load(name).has_rounds]
SETTINGS = {"model": "mlp", "rounds": 6, "participation": 0.5, "eval_every": 1}
METHOD_OPTIONS = {"fedham": {"warmup": 1, "sketch": 16}}


def make_row(number, personal_accuracy=math.nan, validation_accuracy=math.nan):
    return {
        "round": number,
        "personal_accuracy": personal_accuracy,
        "validation_accuracy": validation_accuracy,
    }


def select_best(*rows, shared=False):
    best = None
    for count, one in enumerate(rows, 1):
        best = update_best(best, {"global": {"w": torch.tensor(float(one["round"]))}}, rows[:count], shared=shared)
    return None if best is None else (best.round, best.column, float(best.state["global"]["w"]))


def test_update_best_selects_the_first_round_of_highest_accuracy():
    nan = math.nan
    assert select_best() is None
    assert select_best(make_row(1), make_row(2)) is None
    ups = [make_row(1, nan, 0.5), make_row(2), make_row(3, nan, 0.7), make_row(4, nan, 0.7), make_row(5, nan, 0.6)]
    assert select_best(*ups) == (3, "validation_accuracy", 3.0)
    # Clients' own models, where there are such, however well the global one does.
    assert select_best(
        make_row(1, nan, 0.9),
        make_row(2, 0.4, 0.9),
        make_row(3, 0.6, 0.2),
        make_row(4, nan, 1.0),
        make_row(5, 0.5, 1.0),
    ) == (
        3,
        "personal_accuracy",
        3.0,
    )
    assert select_best(make_row(1, 0.9, 0.1), make_row(2, 0.1, 0.2), make_row(3, 0.5, 0.1), shared=True) == (
        2,
        "validation_accuracy",
        2.0,
    )
    assert select_best({"round": 1, "validation_accuracy": 0.5})[0] == 1


@pytest.mark.parametrize("method", METHODS)
def test_state_of_the_best_round_equals_a_run_stopped_there(method):
    """For every method: what is kept is what a run that stops there ends with, and answers the same."""
    run = worlds.run(method, rounds=4, options=METHOD_OPTIONS.get(method))
    state, best, played = None, None, []
    for t in range(4):
        state = worlds.play(method, run, first=t, last=t + 1, state=state)
        played.append(make_row(t + 1, validation_accuracy=(0.1, 0.5, 0.4, 0.2)[t]))
        best = update_best(best, state, played, shared=False)
    assert best.round == 2
    stopped = worlds.run(method, rounds=4, options=METHOD_OPTIONS.get(method))
    expected = worlds.play(method, stopped, last=2)
    assert worlds.same(best.state, expected)
    for split, p in worlds.answers(method, run, best.state).items():
        assert np.array_equal(p, worlds.answers(method, stopped, expected)[split])
    assert tables(best.state).keys() == tables(state).keys()
    assert methods.load(method).has_rounds


def test_update_best_replaces_the_state_only_when_a_round_is_better():
    run = worlds.run("ditto")
    state, best = worlds.play("ditto", run, last=1), None
    played = [make_row(1, 0.5), make_row(2, 0.5), make_row(3, 0.6)]
    best = update_best(best, state, played[:1], shared=False)
    assert len(state["personal"]._snapshots) == 1
    assert update_best(best, state, played[:2], shared=False) is best
    best = update_best(best, state, played, shared=False)
    assert len(state["personal"]._snapshots) == 1  # the rows of the former best are free again
    assert personal.measure_accuracy(run, ditto, best.state) == personal.measure_accuracy(run, ditto, state)


def read_rounds(folder):
    with (folder / "rounds.csv").open(newline="") as file:
        return [{**line, "seconds": ""} for line in csv.DictReader(file)]


def same_files(one, other):
    files = open_artifact(one).manifest.files
    assert files.keys() == open_artifact(other).manifest.files.keys()
    for name in files.keys() - {"rounds.csv", "progress.json"}:  # which have the rows of all rounds
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


CASES = ["fedavg", "ditto", "fedham", "fedper"]


@pytest.mark.parametrize("method", CASES)
def test_run_reporting_its_best_round_equals_a_run_of_that_many_rounds(method, small, tmp_path, monkeypatch):
    """Accuracies are set so that the fourth of six rounds is best; then only four are run."""
    values = iter([0.1, 0.3, 0.2, 0.8, 0.8, 0.5] * 2)
    if methods.load(method).PERSONAL_MODELS:
        monkeypatch.setattr(personal, "measure_owners", lambda *_: (next(values), math.nan))
    else:
        monkeypatch.setattr("pflcli.core.federation.run.Run.accuracy", lambda *_: next(values))
    options = METHOD_OPTIONS.get(method)
    personalize(method, small.p, tmp_path / "best", options=options, settings={**SETTINGS, "report": "best"})
    values = iter([0.1] * 9)
    personalize(method, small.p, tmp_path / "four", options=options, settings={**SETTINGS, "rounds": 4})
    same_files(tmp_path / "best", tmp_path / "four")
    summary = open_artifact(tmp_path / "best").manifest.summary
    assert (summary["reported"], summary["reported_round"]) == ("best round by validation: 4", 4)
    assert (summary["rounds"], len(read_rounds(tmp_path / "best"))) == (6, 6)
    last = open_artifact(tmp_path / "four").manifest
    assert last.summary["reported"] == "last round"
    assert "reported_round" not in last.summary
    assert last.request["settings"]["report"] == "last"


@pytest.mark.parametrize("method", CASES)
def test_resumed_run_reports_the_same_best_round(method, small, tmp_path, monkeypatch):
    settings, options = {**SETTINGS, "rounds": 9, "report": "best"}, METHOD_OPTIONS.get(method)
    uninterrupted = tmp_path / "whole"
    personalize(method, small.p, uninterrupted, options=options, settings=settings)
    code = importlib.import_module(f"pflcli.methods.{method.replace('-', '_')}")
    train = code.train_round
    for stop in (5, 8):  # after the best round so far, and once more with a best round from the checkpoint

        def interrupted(run, state, t, stop=stop):
            if t == stop:
                raise KeyboardInterrupt
            return train(run, state, t)

        monkeypatch.setattr(code, "train_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            personalize(method, small.p, tmp_path / "again", options=options, settings=settings)
    monkeypatch.setattr(code, "train_round", train)
    personalize(method, small.p, tmp_path / "again", options=options, settings=settings)
    same_files(tmp_path / "again", uninterrupted)
    assert read_rounds(tmp_path / "again") == read_rounds(uninterrupted)
    one, other = (open_artifact(path).manifest.summary for path in (tmp_path / "again", uninterrupted))
    assert one == other


def test_backbone_contains_the_global_model_of_its_best_round(small, tmp_path, pfl):
    words = ("--model", "mlp", "--participation", 0.5, "--eval-every", 1, "--lr", 0.5)
    ran = pfl("train-global", small.p, "-o", tmp_path / "b", *words, "--rounds", 8, "--report", "best")
    assert ran.code == 0
    accuracies = [float(line["validation_accuracy"]) for line in read_rounds(tmp_path / "b")]
    number = 1 + int(np.argmax(accuracies))
    manifest = open_artifact(tmp_path / "b").manifest
    assert manifest.summary["reported"] == f"best round by validation: {number}"
    assert manifest.summary["validation_accuracy"] == pytest.approx(max(accuracies))
    assert f"fedavg: best round by validation: {number} ({max(accuracies):.4f})" in ran.err
    pfl("train-global", small.p, "-o", tmp_path / "short", *words, "--rounds", number)
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("b", "short")]
    assert weights[0] == weights[1]
    # What stands on the backbone says which round it stands on.
    personalize("fedavg-plus", tmp_path / "b", tmp_path / "plus")
    personalize("fedavg", tmp_path / "b", tmp_path / "fedavg")
    for name in ("plus", "fedavg"):
        assert open_artifact(tmp_path / name).manifest.summary["reported_round"] == number
    evaluate([tmp_path / "fedavg", tmp_path / "plus"], tmp_path / "ev")
    metrics = json.loads((tmp_path / "ev" / "metrics.json").read_bytes())
    assert metrics["reported"] == "best round by validation"
    assert [method["metrics"]["reported_round"]["value"] for method in metrics["methods"]] == [number, number]
    display = pfl("show", tmp_path / "ev")
    assert "\trounds\t" in display.out


def test_evaluation_states_which_round_is_reported(small, tmp_path):
    settings = {**SETTINGS, "rounds": 3}
    personalize("fedper", small.p, tmp_path / "last", settings=settings)
    personalize("fedper", small.p, tmp_path / "best", settings={**settings, "report": "best"})
    evaluate([tmp_path / "last", tmp_path / "best"], tmp_path / "ev", baseline="fedper")
    metrics = json.loads((tmp_path / "ev" / "metrics.json").read_bytes())
    assert metrics["reported"] == "last round or best round by validation"
    assert [("reported_round" in method["metrics"]) for method in metrics["methods"]] == [False, True]
    assert [method["label"] for method in metrics["methods"]] == ["fedper", "fedper report=best"]


def test_last_round_is_reported_without_validation_samples(tmp_path, pfl):
    pfl("partition", "writers", "-o", tmp_path / "p", "--clients", 4, "--fractions", "0.8,0,0.2")
    words = ("--model", "mlp", "--rounds", 2, "--participation", 1, "--report", "best")
    ran = pfl("personalize", "fedavg", tmp_path / "p", "-o", tmp_path / "f", *words)
    assert "no round has a validation accuracy; the last one is reported" in ran.err
    assert open_artifact(tmp_path / "f").manifest.summary["reported"] == "last round"


def test_report_best_is_refused_with_refit(small, tmp_path, pfl):
    words = ("--model", "mlp", "--rounds", 2, "--refit", "--report", "best")
    ran = pfl("train-global", small.p, "-o", tmp_path / "b", *words)
    assert ran.code == 2
    assert "refit leaves no validation samples" in ran.err


def test_damaged_best_round_is_refused_as_a_damaged_checkpoint(small, tmp_path, monkeypatch, pfl):
    train = ditto.train_round
    monkeypatch.setattr(
        ditto,
        "train_round",
        lambda run, state, t: (_ for _ in ()).throw(KeyboardInterrupt) if t == 3 else train(run, state, t),
    )
    words = ("personalize", "ditto", small.p, "-o", tmp_path / "d", "--model", "mlp", "--rounds", 5, "--eval-every", 1)
    ran = pfl(*words, "--report", "best")
    assert ran.code == 130
    monkeypatch.setattr(ditto, "train_round", train)
    monkeypatch.setattr("pflcli.workflow.training.checkpoint.json.loads", lambda _: [1])
    ran = pfl(*words, "--report", "best")
    assert ran.code == 3
    assert "is damaged" in ran.err
