"""The accuracy of clients' own models, round by round, and what predictions hold beside their answers."""

from __future__ import annotations

import csv
import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.numpy import load

import worlds
from helpers import CLASSIFYING
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import methods, parameters, registry
from pflcli.core.execution import Execution
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation import callbacks, loop, personal_accuracy
from pflcli.evaluation.metrics import client_relations
from pflcli.evaluation.round_costs import Link, compute_seconds

FACTS = {name: registry.card("methods", name).facts for name in registry.names("methods")}
METHODS = [name for name, facts in FACTS.items() if "PERSONAL_MODELS" in facts]
ADAPT = [name for name, facts in FACTS.items() if "ADAPTS" in facts]
FEW = {"model": "mlp", "rounds": 3, "participation": 0.34, "eval_every": 2}


def read_rows(folder, name="rounds.csv"):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def measure_personal_accuracy(method, run, state):
    return personal_accuracy.measure_accuracy(run, methods.load(method), state)


@pytest.mark.parametrize("method", METHODS + ADAPT)
def test_personal_accuracy_equals_current_predictions_and_leaves_no_trace(method):
    run = worlds.run(method, participation=0.5)
    state = worlds.play(method, run)
    p = np.split(worlds.answers(method, run, state)["validation"], np.cumsum(run.federation.sizes("validation"))[:-1])
    owners = personal_accuracy.find_owners(run, methods.load(method), state)
    assert len(owners)
    right = [
        p[c].argmax(axis=1) == run.federation.y[run.federation.block(c, "validation")].numpy() for c in owners.tolist()
    ]
    before, losses, trained = dict(run.traffic), list(run.notes.losses), set(run.notes.trained)
    assert measure_personal_accuracy(method, run, state) == np.concatenate(right).mean()
    assert (run.traffic, run.notes.losses, run.notes.trained, run.sealed) == (before, losses, trained, False)


@pytest.mark.parametrize("method", ["gossip", "fedrod", "fedproto", "clustered-fl"])
def test_personal_accuracy_uses_compiled_loops_and_predictions_do_not(method, monkeypatch):
    run, compiled = worlds.run(method, participation=1.0), []
    state, infer = worlds.play(method, run), run.engine.executor.infer

    def recorded(tasks, models):
        compiled.extend(task.compiled for task in tasks)
        return infer(tasks, models)

    monkeypatch.setattr(run.engine.executor, "infer", recorded)
    measure_personal_accuracy(method, run, state)
    assert compiled
    assert all(compiled)
    compiled.clear()
    worlds.answers(method, run, state)
    assert compiled
    assert not any(compiled)


def test_failed_measurement_resets_the_training_state_of_the_engine(monkeypatch):
    run = worlds.run("gossip", participation=1.0)
    state = worlds.play("gossip", run)
    monkeypatch.setattr(run.engine.executor, "infer", lambda tasks, models: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure_personal_accuracy("gossip", run, state)
    assert not run.engine._is_training


@pytest.mark.parametrize(
    ("method", "options"), [("gossip", {}), ("fedamp", {}), ("ditto", {}), ("fedham", {"answer": "final"})]
)
def test_personal_accuracy_of_a_model_table_matches_hand_computed_predictions(method, options):
    """Every sample of those that took part, under the row of the table, and nothing but matrix products."""
    run = worlds.run(method, participation=0.5, rounds=2, options=options)
    state = worlds.play(method, run)
    models = state[methods.load(method).PERSONAL_MODELS]
    took = sorted({c for t in range(2) for c in run.cohort(t).tolist()})
    right = []
    for c in took:
        answer = worlds.probabilities(parameters.pick(models[[c]], 0), run.federation, c, "validation").argmax(axis=1)
        right += (answer == run.federation.y[run.federation.block(c, "validation")].numpy()).tolist()
    assert took == models.written.tolist()
    assert measure_personal_accuracy(method, run, state) == sum(right) / len(right)


def test_personal_accuracy_excludes_clients_that_never_took_part():
    """Their models are still the common one, which here would spoil whatever it answers."""
    run = worlds.run("gossip", rounds=1, participation=0.5)
    state = worlds.play("gossip", run)
    before = measure_personal_accuracy("gossip", run, state)
    state["model"].default = {name: torch.full_like(value, torch.nan) for name, value in run.init.items()}
    assert personal_accuracy.find_owners(run, methods.load("gossip"), state).tolist() == run.cohort(0).tolist()
    assert 0 <= before == measure_personal_accuracy("gossip", run, state)


def test_personal_accuracy_equals_validation_accuracy_while_clients_share_one_model():
    run = worlds.run("lg-fedavg", options={"warmup": 3})
    state = worlds.play("lg-fedavg", run)
    assert measure_personal_accuracy("lg-fedavg", run, state) == run.accuracy(
        {**state["body"], **state["head"]}, "validation"
    )


def test_personal_accuracy_is_nan_when_validation_samples_were_trained_on():
    options = {"warmup": 1, "ham_split": "validation", "answer": "final", "self_share": 0.3}
    run = worlds.run("fedham", participation=1.0, options=options)
    assert math.isnan(measure_personal_accuracy("fedham", run, worlds.play("fedham", run)))


def test_personal_accuracy_does_not_depend_on_batching(monkeypatch):
    run = worlds.run("panm", participation=1.0)
    state = worlds.play("panm", run)
    expected = measure_personal_accuracy("panm", run, state)
    monkeypatch.setattr("pflcli.core.simulation.predict.MIN_BATCH", 2)
    assert measure_personal_accuracy("panm", run, state) == expected


def test_evaluated_rounds_record_personal_accuracy_and_show_it_in_progress(small, tmp_path):
    personalize("gossip", small.p, tmp_path / "g", settings=FEW)
    table = read_rows(tmp_path / "g")
    assert [bool(row["personal_accuracy"]) for row in table] == [False, True, True]
    assert tuple(table[0]) == loop.ROUND_COLUMNS
    row = {"loss": 0.5, "validation_accuracy": math.nan}
    last_rows = [{**row, "personal_accuracy": 0.25}, {**row, "personal_accuracy": math.nan}]
    assert callbacks.describe_last(last_rows) == "loss 0.500, personal accuracy 0.250"
    assert callbacks.describe_last([row]) == "loss 0.500"


class Stop:
    """Watches a step and interrupts it after a number of rounds."""

    def __init__(self, after):
        self.left = after

    def say(self, text):
        pass

    detail = say

    @contextmanager
    def progress(self, label, total, completed=0):
        def advance(steps, note):
            self.left -= steps
            if self.left == 0:
                raise KeyboardInterrupt

        yield advance


@pytest.mark.parametrize("method", ["panm", "fedham", "fedper", "apfl", "fedhealth"])
def test_interrupted_run_resumes_with_the_same_rounds_csv(small, tmp_path, method):
    settings = {**FEW, "rounds": 6}
    personalize(method, small.p, tmp_path / "whole", settings=settings)
    for after in (3, 1):
        with pytest.raises(KeyboardInterrupt):
            personalize(method, small.p, tmp_path / "m", settings=settings, execution=Execution(reporter=Stop(after)))
    personalize(method, small.p, tmp_path / "m", settings=settings)
    uninterrupted, resumed = ([{**row, "seconds": ""} for row in read_rows(tmp_path / name)] for name in ("whole", "m"))
    assert uninterrupted == resumed
    for name in open_artifact(tmp_path / "whole").manifest.files:
        assert name == "rounds.csv" or (tmp_path / "m" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("method", ["fedbabu", "fedhealth", "fedem"])
def test_personal_every_measures_adapting_clients_and_changes_nothing_else(small, tmp_path, method):
    for name, every in (("plain", 0), ("measured", 2)):
        personalize(method, small.p, tmp_path / name, settings={**FEW, "personal_every": every})
    plain, measured = (
        [row for row in read_rows(tmp_path / name) if row["round"] != "0"] for name in ("plain", "measured")
    )
    assert [bool(row["personal_accuracy"]) for row in measured] == [False, True, True]
    others = {"seconds": "", "personal_accuracy": ""}
    assert [row | others for row in plain] == [row | others for row in measured]
    for name in ("predictions.h5", "state.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "measured" / name).read_bytes()
    one = predictions.read(open_artifact(tmp_path / "measured"), "validation")
    assert float(measured[-1]["personal_accuracy"]) == (one.parts["p"].argmax(axis=1) == one.y).mean()


def test_rounds_csv_records_the_costs_of_setup_in_row_0(small, tmp_path):
    personalize("fedhealth", small.p, tmp_path / "f", settings=FEW)
    table = read_rows(tmp_path / "f")
    assert [row["round"] for row in table] == ["0", "1", "2", "3"]
    summary = open_artifact(tmp_path / "f").manifest.summary
    assert summary["rounds"] == 3
    for link in ("bytes_up", "bytes_down"):
        assert int(table[0][link]) > 0
        assert sum(int(row[link]) for row in table) == summary[link]
    assert float(table[0]["seconds"]) > 0
    assert table[0]["clients"] == "6"
    # Behind a link each of the six has its share of the bytes, and waits for all of what the server computes.
    link = Link(up=1, down=1)
    sent_bytes = (int(table[0]["bytes_up"]) + int(table[0]["bytes_down"])) / 6
    assert compute_seconds(table[0], 2) == pytest.approx(float(table[0]["seconds"]))
    assert link.transfer(table[0]) == pytest.approx(8e-6 * sent_bytes)
    assert table[0]["lr"] == table[0]["validation_accuracy"] == ""


def test_setup_costs_of_a_backbone_are_counted_once(small, tmp_path):
    train_global(small.p, tmp_path / "b", method="fedhealth", settings=FEW)
    personalize("fedhealth", tmp_path / "b", tmp_path / "f")
    assert not (tmp_path / "f" / "rounds.csv").exists()
    backbone, total = (open_artifact(tmp_path / name).manifest.summary for name in ("b", "f"))
    assert {link: backbone[link] for link in ("bytes_up", "bytes_down")} == {
        link: total[link] for link in ("bytes_up", "bytes_down")
    }
    assert read_rows(tmp_path / "b")[0]["round"] == "0"


def test_rounds_csv_has_the_same_columns_and_no_personal_accuracy_without_personal_models(small):
    rows = read_rows(small.b)
    assert tuple(rows[0]) == loop.ROUND_COLUMNS
    assert {row["personal_accuracy"] for row in rows} == {row["test_accuracy"] for row in rows} == {""}


def test_state_contains_the_declared_personal_models():
    """A table, or a cluster for every client; or it comes with the first round that needs it."""
    for method in METHODS:
        run = worlds.run(method)
        models = worlds.play(method, run).get(methods.load(method).PERSONAL_MODELS)
        if isinstance(models, ModelTable):
            assert len(models) == len(run.clients)
        elif models is not None:
            assert models.shape == (len(run.clients),)
        else:
            assert method == "fedbn"  # whose network here has no normalization


@pytest.fixture(scope="module")
def clustered_panm_run(tmp_path_factory):
    """Two groups of four writers' digits, known to the partition, and six rounds of PANM on them."""
    root = tmp_path_factory.mktemp("grouped")
    options = {"groups": 2, "kind": "labels"}
    partition("writers", root / "p", scheme="clusters", clients=8, options=options)
    settings = {"model": "mlp", "rounds": 6, "participation": 0.5}
    personalize("panm", root / "p", root / "panm", settings=settings, options={"k": 2, "t1": 3})
    return root


def test_neighbours_csv_compares_neighbours_with_true_clusters(clustered_panm_run):
    graphs = load((clustered_panm_run / "panm" / "state.safetensors").read_bytes())["graph"]
    cluster = partitions.read_clusters(open_artifact(clustered_panm_run / "p")).tolist()
    assert cluster == partitions.read(open_artifact(clustered_panm_run / "p")).cluster.tolist()
    assert len(graphs) == 6
    table = read_rows(clustered_panm_run / "panm", "neighbours.csv")
    for number, (row, bits) in enumerate(zip(table, graphs, strict=True), start=1):
        bags = [[j for j in range(8) if bits[i, j // 8] >> (7 - j % 8) & 1] for i in range(8)]
        alike = [[j for j in range(8) if j != i and cluster[j] == cluster[i]] for i in range(8)]
        hits = [len({*bag} & {*same}) for bag, same in zip(bags, alike, strict=True)]
        assert int(row["round"]) == number
        assert float(row["neighbours"]) == sum(map(len, bags)) / 8
        shares = [hit / len(bag) for hit, bag in zip(hits, bags, strict=True) if bag]
        assert float(row["precision"]) == pytest.approx(sum(shares) / len(shares))
        assert float(row["recall"]) == pytest.approx(sum(h / len(a) for h, a in zip(hits, alike, strict=True)) / 8)
    assert float(table[-1]["neighbours"]) > 0


def test_neighbours_csv_only_counts_neighbours_without_true_clusters(small, tmp_path):
    personalize("gossip", small.p, tmp_path / "g", settings=FEW, options={"k": 1})
    assert [list(row) for row in read_rows(tmp_path / "g", "neighbours.csv")] == [["round", "neighbours"]] * 3
    assert not (small.fedavg / "neighbours.csv").exists()


def test_neighbour_precision_is_nan_without_neighbours():
    (row,) = client_relations.summarize_neighbours([np.zeros((3, 3), bool)], np.asarray([0, 0, 1]))
    assert (row["round"], row["neighbours"], row["recall"]) == (1, 0, 0)
    assert math.isnan(row["precision"])


@pytest.mark.parametrize(
    ("method", "options"), [("fedattn", {}), ("fedattn-extended", {"attention": "none"}), ("ditto", {}), ("fedavg", {})]
)
def test_test_last_tests_the_last_rounds_and_changes_nothing_else(tmp_path, method, options):
    partition("writers", tmp_path / "p", clients=6)
    for last in (0, 2):
        out = tmp_path / str(last)
        settings = {**FEW, "participation": 1.0, "rounds": 4, "test_last": last}
        personalize(method, tmp_path / "p", out, options=options, settings=settings)
    plain, tested = (read_rows(tmp_path / str(last)) for last in (0, 2))
    assert {row.pop("test_accuracy") for row in plain} == {""}
    accuracies = [row.pop("test_accuracy") for row in tested]
    for row in (*plain, *tested):
        row.pop("seconds")
    assert plain == tested
    assert accuracies[:2] == ["", ""]
    states = [load((tmp_path / str(last) / "state.safetensors").read_bytes()) for last in (0, 2)]
    assert all(np.array_equal(states[0][name], value) for name, value in states[1].items())
    evaluate([tmp_path / "2"], tmp_path / "e")
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())["methods"][0]["metrics"]
    last_rounds = metrics["last_rounds_accuracy"]
    assert last_rounds["value"] == pytest.approx(np.mean([float(value) for value in accuracies[2:]]))
    assert last_rounds["n"] == 2
    # All clients took part, so the last round's answers are those that are stored.
    assert float(accuracies[-1]) == pytest.approx(metrics["accuracy"]["value"])
    evaluate([tmp_path / "0"], tmp_path / "e0")
    metrics = json.loads((tmp_path / "e0" / "metrics.json").read_text())["methods"][0]["metrics"]
    assert "last_rounds_accuracy" not in metrics


@pytest.mark.parametrize("every", [0, 1])
def test_adapting_clients_are_tested_only_when_personal_every_is_set(tmp_path, every):
    partition("writers", tmp_path / "p", clients=4)
    settings = {**FEW, "participation": 1.0, "test_last": 2, "personal_every": every}
    personalize("fedbabu", tmp_path / "p", tmp_path / "m", settings=settings)
    evaluate([tmp_path / "m"], tmp_path / "e")
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())["methods"][0]["metrics"]
    accuracies = [row["test_accuracy"] for row in read_rows(tmp_path / "m")]
    if every:
        assert float(accuracies[-1]) == pytest.approx(metrics["accuracy"]["value"])
        assert metrics["last_rounds_accuracy"]["value"] == pytest.approx(np.mean([*map(float, accuracies[-2:])]))
    else:
        assert not any(accuracies)
        assert "last_rounds_accuracy" not in metrics


def test_method_on_a_backbone_does_not_inherit_its_last_rounds_accuracy(tmp_path):
    partition("writers", tmp_path / "p", clients=4)
    compare(
        [tmp_path / "p"],
        tmp_path / "c",
        methods=["fedavg", "fedavg-plus"],
        settings={**FEW, "rounds": 2, "test_last": 1},
        references=False,
    )
    evaluated = json.loads((tmp_path / "c" / "comparison" / "metrics.json").read_text())["methods"]
    assert {method["label"]: "last_rounds_accuracy" in method["metrics"] for method in evaluated} == {
        "fedavg": True,
        "fedavg-plus": False,
    }


@pytest.mark.parametrize("method", CLASSIFYING)
def test_answer_train_adds_predictions_on_training_samples_and_changes_nothing_else(method):
    plain, answering = (worlds.run(method, participation=0.5, answer_train=answer) for answer in (False, True))
    state = worlds.play(method, plain)
    assert worlds.same(state, worlds.play(method, answering))
    expected, actual = (worlds.answers(method, run, state) for run in (plain, answering))
    assert actual.keys() == {*expected, "train"}
    assert len(actual["train"]) == answering.federation.sizes("train").sum()
    np.testing.assert_allclose(actual["train"].sum(axis=1), 1, atol=1e-4)
    for split, p in expected.items():
        np.testing.assert_allclose(actual[split], p, atol=1e-6)


def test_evaluation_reports_accuracy_on_training_samples(pfl, tmp_path):
    partition("writers", tmp_path / "p", clients=8, new_clients=0.25)
    settings = {**FEW, "participation": 1.0, "rounds": 8, "lr": 0.3}
    for answer in (False, True):
        personalize("local", tmp_path / "p", tmp_path / str(answer), settings={**settings, "answer_train": answer})
    evaluate([tmp_path / "True"], tmp_path / "test")
    evaluate([tmp_path / "True"], tmp_path / "train", split="train")
    metrics, on_train = (
        json.loads((tmp_path / name / "metrics.json").read_text())["methods"][0]["metrics"]
        for name in ("test", "train")
    )
    assert metrics["train_accuracy"]["value"] == pytest.approx(on_train["accuracy"]["value"])
    for group in ("seen", "unseen"):
        assert metrics[f"train_accuracy_{group}"]["value"] == pytest.approx(on_train[f"accuracy_{group}"]["value"])
    assert metrics["train_accuracy"]["value"] > metrics["accuracy"]["value"]
    ran = pfl("evaluate", tmp_path / "False", "-o", tmp_path / "e", "--split", "train")
    assert ran.code == 3
    assert "--answer-train" in ran.err
