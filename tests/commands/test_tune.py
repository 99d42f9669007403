"""Trials are ordinary artifacts, the choice is made by validation samples alone, and the best is a file for others."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import same, shuffle_test_labels
from pflcli.artifacts.kinds import predictions, tuning
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.tune import tune
from pflcli.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.execution import Execution
from pflcli.tuning import samplers
from pflcli.tuning import trials as tuning_trials
from pflcli.tuning.space import Axis, search_space
from pflcli.tuning.trials import readable

FEW = {"model": "logistic", "rounds": 1, "participation": 1.0}
WORDS = ("--model", "logistic", "--rounds", 1, "--participation", 1.0)
SEARCH = {"training.lr": [0.1, 1.0, 1e30]}
SET = {"lam": 0.1}


def searched(source, out, **kwargs):
    return tune("ditto", source, out, **{"search": SEARCH, "options": SET, "settings": FEW, **kwargs})


PLANNED = {
    "search": {"training.lr": "0.001..1"},
    "sampler": "random",
    "trials": 4,
    "settings": {"model": "logistic"},
    "execution": Execution(dry_run=True),
}


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
    """The partition that is tuned on; only to be read."""
    path = tmp_path_factory.mktemp("writers") / "p"
    partition("writers", path, clients=6, seed=0)
    return path


@pytest.fixture(scope="module")
def finished(writers, tmp_path_factory):
    """A search of three points, one of which diverges; only to be read."""
    out = tmp_path_factory.mktemp("tuned") / "t"
    searched(writers, out)
    return out


@pytest.fixture
def folder(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "t")
    return tmp_path / "t"


@pytest.fixture
def unchosen(folder):
    """The trials without the choice among them, so that nothing is trained again."""
    shutil.rmtree(folder / "tuning")
    return folder


@pytest.fixture
def untrained(monkeypatch):
    """Nothing may be trained any more."""

    def refuse(*args):
        raise AssertionError("something is trained")

    monkeypatch.setattr("pflcli.simulation.create_run.Engine", refuse)


def search_result(out):
    return tuning.read(open_artifact(out / "tuning"))


def rows(out):
    """The trials without the seconds, which nobody can repeat."""
    return [{**row, "seconds": 0} for row in search_result(out)["trials"]]


def choice(out):
    return (out / "tuning" / "best.toml").read_bytes()


# What is made


def test_every_trial_is_what_personalize_makes(writers, finished, tmp_path):
    good = [row for row in search_result(finished)["trials"] if not row["problem"]]
    assert len(good) == 2
    row = good[-1]
    settings = {**FEW, "lr": row["values"]["training.lr"]}
    personalize("ditto", writers, tmp_path / "x", options=SET, settings=settings)
    same(tmp_path / "x", finished / "tuning" / row["path"])
    assert row["fingerprint"] == open_artifact(tmp_path / "x").manifest.fingerprint


def test_what_diverges_is_a_row_with_its_reason_and_not_the_end(finished):
    bad = [row for row in search_result(finished)["trials"] if row["problem"]]
    assert [row["values"]["training.lr"] for row in bad] == [1e30]
    assert all("non-finite" in row["problem"] and row["validation_accuracy"] is None for row in bad)
    summary = open_artifact(finished / "tuning").manifest.summary
    assert (summary["trials"], summary["failed"]) == (3, 1)
    assert len((finished / "tuning" / "table.md").read_text().splitlines()) == 5


def test_the_best_is_the_first_of_the_highest_accuracy(finished):
    scored = [row for row in search_result(finished)["trials"] if not row["problem"]]
    best = max(row["validation_accuracy"] for row in scored)
    first = next(row for row in scored if row["validation_accuracy"] == best)
    assert search_result(finished)["best"] == first["trial"]
    assert open_artifact(finished / "tuning").manifest.summary["best"] == first["values"]


def test_the_table_begins_with_the_best_trial_and_ends_with_failed_ones():
    def trial(number, accuracy, log_loss, problem=""):
        scores = {"validation_accuracy": accuracy, "validation_log_loss": log_loss, "bottom_decile": accuracy}
        return {"trial": number, "values": {"lam": number}, **scores, "seconds": 1.0, "problem": problem}

    trials = [trial(0, 0.5, 1.5), trial(1, None, None, "diverged"), trial(2, 0.75, 1.0), trial(3, 0.25, 0.5)]
    orders = {"accuracy": ["2", "0", "3", "1"], "log_loss": ["3", "2", "0", "1"]}
    for metric, order in orders.items():
        assert [line[0] for line in readable({"metric": metric, "trials": trials})[1]] == order


def test_the_best_is_taken_by_personalize_and_by_compare(writers, finished, tmp_path, pfl):
    """What a dry run of either would make is the best trial."""
    best = search_result(finished)["trials"][search_result(finished)["best"] - 1]
    config = finished / "tuning" / "best.toml"
    ran = pfl("personalize", "ditto", writers, "-o", tmp_path / "x", "--config", config, "-n", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["fingerprint"] == best["fingerprint"]
    shutil.copytree(finished / "tuning" / best["path"], tmp_path / "c" / "seed-0" / "ditto")
    line = ("--methods", "ditto", "--baseline", "ditto", "--config", config, "-n")
    ran = pfl("compare", writers, "-o", tmp_path / "c", *line)
    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[-1] == "ditto\tup to date"


def test_a_backbone_is_trained_by_the_best_of_fedavg(writers, tmp_path, pfl):
    line = ("tune", "fedavg", writers, "-o", tmp_path / "t", *WORDS, "--search", "lr=0.03,0.3")
    assert pfl(*line).code == 0
    config = tmp_path / "t" / "tuning" / "best.toml"
    assert pfl("train-global", writers, "-o", tmp_path / "b", "--config", config).code == 0
    values = tomllib.loads(config.read_text())["personalize"]
    assert open_artifact(tmp_path / "b").manifest.request["settings"]["lr"] == values["lr"]


@pytest.fixture(scope="module")
def neighbours(writers, tmp_path_factory):
    """A search of a method that stands on a datastore; only to be read."""
    out = tmp_path_factory.mktemp("neighbours") / "t"
    tune("knn-per", writers, out, search={"k": "1,3"}, settings=FEW)
    return out


def test_what_a_method_stands_on_is_made_once_beside_its_trials(neighbours, tmp_path):
    assert {path.name for path in neighbours.iterdir()} == {
        *("backbone", "embeddings", "datastore", "trials", "tuning"),
    }
    tune("knn-per", neighbours / "datastore", tmp_path / "d", search={"k": "1,3"})
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"trials", "tuning"}
    assert rows(tmp_path / "d") == rows(neighbours)


# Made once, and gone on with


def test_run_again_it_is_up_to_date(writers, folder, untrained):
    assert searched(writers, folder).decision == "up to date"


class Interrupting:
    """A reporter that interrupts when a line begins so."""

    def __init__(self, line):
        self.line = line

    def say(self, text):
        if text.startswith(self.line):
            raise KeyboardInterrupt

    detail = staticmethod(lambda text: None)

    @contextmanager
    def progress(self, label, total, completed=0):
        yield lambda steps, note: None


def test_interrupted_and_run_again_it_chooses_the_same(writers, finished, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        searched(writers, tmp_path / "t", execution=Execution(reporter=Interrupting("trial 3 of 3")))
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "t" / "trials").glob("*/predictions.h5")}
    assert 1 <= len(written) <= 2
    searched(writers, tmp_path / "t")
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())
    assert (choice(tmp_path / "t"), rows(tmp_path / "t")) == (choice(finished), rows(finished))


def test_more_trials_join_those_that_are_there(writers, finished, unchosen):
    searched(writers, unchosen, trials=1)
    assert rows(unchosen) == rows(finished)[:1]
    searched(writers, unchosen)
    assert rows(unchosen) == rows(finished)
    with pytest.raises(ConflictError):
        searched(writers, unchosen, trials=2)
    with pytest.raises(ConflictError):
        searched(writers, unchosen, search={"training.lr": [0.1]})


def test_no_trial_begins_when_the_time_is_spent(writers, finished, unchosen):
    searched(writers, unchosen, minutes=1e-6)
    assert len(rows(unchosen)) == 1
    assert searched(writers, unchosen, minutes=1e-6).decision == "up to date"
    searched(writers, unchosen, minutes=60)
    assert rows(unchosen) == rows(finished)


@pytest.mark.parametrize(
    ("minutes", "score", "count"), [(None, 0.5, 4), (2.0, 0.5, 3), (1.0, 0.5, 2), (0.8, 0.5, 1), (1.0, None, 4)]
)
def test_the_minutes_of_a_search_include_all_trials(minutes, score, count, monkeypatch, tmp_path):
    """A trial takes 50 seconds. Without a score there is nothing to stop with."""
    monkeypatch.setattr(tuning_trials, "run_job", lambda job, call, progress: None)
    monkeypatch.setattr(
        tuning_trials,
        "_score",
        lambda number, point, path, metric: tuning_trials.Trial(number, point, path, 50.0, score),
    )
    sampler = SimpleNamespace(count=4, ask=lambda: {"lr": 0.1}, tell=lambda accuracy: None)
    made = tuning_trials.run(sampler, None, lambda point: tmp_path, Execution(), 0, 1.0, minutes, "accuracy")
    assert [trial.number for trial in made] == [*range(1, count + 1)]


def test_a_dry_run_says_how_many_trials_there_would_be(writers, folder, tmp_path, pfl):
    line = ("--search", "training.lr=0.1,1.0,1e30", "--set", "lam=0.1", *WORDS, "-n")
    ran = pfl("tune", "ditto", writers, "-o", tmp_path / "t2", *line, "--trials", 2)
    assert "2 trials of ditto of a grid of 3: 0 up to date, 2 to make" in ran.err
    assert not (tmp_path / "t2").exists()
    shutil.rmtree(folder / "tuning")
    assert "2 up to date, 1 to make" in pfl("tune", "ditto", writers, "-o", folder, *line).err


def test_what_another_request_made_is_replaced_with_force_and_nothing_else(writers, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/predictions.h5")}
    with pytest.raises(ConflictError):
        searched(writers, folder, settings={**FEW, "rounds": 2})
    assert {path: path.stat().st_mtime_ns for path in before} == before
    searched(writers, folder, search={"training.lr": [1.0, 0.1]}, execution=Execution(force=True))
    assert len(rows(folder)) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before


# It cannot cheat


@pytest.fixture(scope="module")
def shuffled(writers, tmp_path_factory):
    """The partition with its test labels shuffled, and trials on it."""
    at = tmp_path_factory.mktemp("shuffled")
    searched(shuffle_test_labels(writers, at / "p"), at / "t")
    return at


def test_the_choice_is_the_same_to_the_byte_when_test_labels_are_shuffled(finished, shuffled):
    assert choice(shuffled / "t") == choice(finished)
    assert rows(shuffled / "t") == rows(finished)


@pytest.mark.parametrize("metric", ["log_loss", "balanced_accuracy"])
def test_by_another_metric_too(writers, finished, shuffled, unchosen, tmp_path, metric):
    shutil.copytree(shuffled / "t" / "trials", tmp_path / "s" / "trials")
    searched(shuffled / "p", tmp_path / "s", metric=metric)
    searched(writers, unchosen, metric=metric)
    assert choice(tmp_path / "s") == choice(unchosen)
    assert rows(tmp_path / "s") == rows(unchosen)
    assert choice(unchosen) != choice(finished)


# By another metric


def test_the_best_is_that_of_the_metric(writers, unchosen, capsys, pfl):
    """Its score worked out from the stored predictions; of a log-loss the lowest is the best."""
    line = ("--search", "training.lr=0.1,1.0,1e30", "--set", "lam=0.1", *WORDS, "--metric", "log-loss")
    ran = pfl("tune", "ditto", writers, "-o", unchosen, *line)
    assert ran.code == 0, ran.err
    losses = {}
    for row in rows(unchosen):
        if row["problem"]:
            assert row["validation_log_loss"] is None
            continue
        held_out = predictions.read(open_artifact(unchosen / "tuning" / row["path"]), "validation")
        p = np.take_along_axis(held_out.parts["p"], held_out.y[:, None], axis=1).astype(float)
        losses[row["trial"]] = -np.log(np.maximum(p, 1e-12)).mean()  # clients by samples: the mean over samples
        assert row["validation_log_loss"] == pytest.approx(losses[row["trial"]], abs=1e-6)
        right = held_out.parts["p"].argmax(axis=1) == held_out.y
        assert row["validation_accuracy"] == pytest.approx(right.mean(), abs=1e-6)
        for name in ("validation_log_loss", "validation_accuracy", "bottom_decile"):
            assert row[name] == round(row[name], 6)
    result = search_result(unchosen)
    assert (result["metric"], result["best"]) == ("log_loss", min(losses, key=losses.get))
    manifest = open_artifact(unchosen / "tuning").manifest
    assert manifest.request["metric"] == "log_loss"
    assert manifest.summary["validation_log_loss"] == pytest.approx(min(losses.values()))
    heading, best = (unchosen / "tuning" / "table.md").read_text().splitlines()[::2][:2]
    assert "validation log-loss | validation accuracy % |" in heading
    assert f"| {min(losses.values()):.3f} |" in best
    assert f"validation log-loss {min(losses.values()):.4f}" in ran.err


def test_a_metric_that_no_client_defines_is_no_score(tmp_path):
    """Every client of this partition has one class."""
    partition("writers", tmp_path / "p", scheme="classes", clients=10, options={"n": 1})
    with pytest.raises(ComputationError, match="all 1 trials failed") as error:
        tune("local", tmp_path / "p", tmp_path / "t", search={"lr": [0.1]}, settings=FEW, metric="auroc")
    assert error.value.fix == ("AUROC is not defined: no client has validation samples of two classes",)


def test_the_samples_that_are_tested_are_not_read_to_choose(writers, unchosen, monkeypatch):
    read, splits_read = predictions.read, []
    monkeypatch.setattr(
        predictions, "read", lambda artifact, split: (splits_read.append(split), read(artifact, split))[1]
    )
    searched(writers, unchosen)
    assert set(splits_read) == {"validation"}


# Ranges


def test_random_draws_the_same_again_the_default_first_and_no_point_twice(writers, tmp_path):
    search = {"training.lr": "0.001..1", "lam": "none,0.1,1", "steps": "1..3", "epochs": "1..500"}
    ranges = search_space("ditto", search, {}, {}, "random")
    default = {"training.lr": 0.1, "lam": None, "steps": 1, "epochs": 5}
    points = samplers.sampler("random", ranges, 200, default, 0).points
    assert points[:9] == samplers.sampler("random", ranges, 9, default, 0).points
    assert points != samplers.sampler("random", ranges, 200, default, 1).points
    assert (points[0], len(points)) == (default, 200)
    assert len({json.dumps(point) for point in points}) == 200
    assert all(ranges.holds(point) for point in points)
    assert {point["steps"] for point in points} == {1, 2, 3}
    low = sum(point["training.lr"] < 0.0316 for point in points)  # the middle of the range on a log scale
    assert 75 < low < 125
    few = search_space("ditto", {"steps": "1..3"}, {}, {}, "random")
    assert len(samplers.sampler("random", few, 20, {"steps": 0}, 0).points) == 3
    assert [row["decision"] for row in tune("ditto", writers, tmp_path / "t", **PLANNED).summary["plan"]] == ["new"] * 4


def test_random_on_lists_is_the_grid():
    lists = search_space("ditto", {"lam": "none,0.1,1", "training.lr": "0.1,1"}, {}, {}, "random")
    default = {"lam": None, "training.lr": 0.1}
    drawn = [samplers.sampler(name, lists, 4, default, 3).points for name in ("grid", "random")]
    assert drawn[0] == drawn[1]


# Optuna


def test_optuna_that_is_missing_is_named_with_what_to_type(writers, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="Optuna, which is not installed") as error:
        searched(writers, tmp_path / "t", sampler="optuna")
    assert error.value.fix == ("pip install 'pflcli[tune]'",)


def proposed(searched, count, scores=(), seed=0):
    """The points that Optuna proposes, told so."""
    sampler = samplers.sampler("optuna", searched, count, {"training.lr": 0.1, "lam": None}, seed)
    points = []
    for number in range(sampler.count):
        points.append(sampler.ask())
        sampler.tell(scores[number] if number < len(scores) else 0.5)
    return points


def test_optuna_proposes_the_same_again_the_default_first_and_no_point_twice():
    ranges = search_space("ditto", {"training.lr": "0.001..1", "lam": "none,0.1,1"}, {}, {}, "optuna")
    points = proposed(ranges, 15, [0.1, None, 0.9])
    assert points == proposed(ranges, 15, [0.1, None, 0.9])
    assert points[:8] == proposed(ranges, 8, [0.1, None, 0.9])
    assert points[0] == {"training.lr": 0.1, "lam": None}
    assert len({json.dumps(point) for point in points}) == 15
    assert points != proposed(ranges, 15, [0.1, None, 0.9], seed=1)
    lists = search_space("ditto", {"training.lr": "0.1,1", "lam": "none,0.1,1"}, {}, {}, "optuna")
    assert len({json.dumps(point) for point in proposed(lists, 50)}) == 6


def test_optuna_takes_the_range_that_a_grid_spans():
    axes = {axis.key: axis for axis in search_space("knn-per", None, {}, {}, "optuna").axes}
    assert axes["k"].plain() == {"low": 1, "high": 16}
    assert axes["k"].is_whole
    assert Axis("lam", (3.0, 0.5)).as_range() == Axis("lam", (), (0.5, 3.0))
    assert Axis("lam", (3.0,)).as_range() == Axis("lam", (3.0,))


@pytest.mark.parametrize(
    ("bounds", "value", "expected"),
    [
        ((0.001, 1.0), 0.0123456, 0.01235),
        ((0.0123456, 1.0), 0.0123456, 0.01235),
        ((0.01234321, 1.0), 0.01234321, 0.01234321),
        ((0.001, 0.0123456), 0.0123455, 0.0123456),
        ((10_000, 90_000), 12_345, 12_345),
    ],
)
def test_numbers_from_optuna_have_four_digits_and_stay_in_their_range(bounds, value, expected):
    assert samplers._round(Axis("lr", (), bounds), value) == expected


def test_a_search_by_optuna_resumes_where_it_was_interrupted(neighbours, tmp_path):
    datastore = neighbours / "datastore"
    line = {"search": {"k": "1..16"}, "sampler": "optuna", "trials": 4}
    tune("knn-per", datastore, tmp_path / "a", **line)
    with pytest.raises(KeyboardInterrupt):
        tune("knn-per", datastore, tmp_path / "b", **line, execution=Execution(reporter=Interrupting("trial 3 of 4")))
    tune("knn-per", datastore, tmp_path / "b", **line)
    assert (choice(tmp_path / "a"), rows(tmp_path / "a")) == (choice(tmp_path / "b"), rows(tmp_path / "b"))


# What is refused


@pytest.mark.parametrize(
    ("method", "search", "kwargs", "message"),
    [
        ("ditto", {"lamb": "1"}, {}, "unknown option 'lamb' for ditto"),
        ("ditto", {"training.lam": "1"}, {}, "unknown training setting 'lam'"),
        ("ditto", {"lam": "-1"}, {}, "lam=-1 does not fit ditto"),
        ("ditto", {"lam": ""}, {}, "lam has no values"),
        ("ditto", {"lam": "1,1.0"}, {}, "a value occurs twice"),
        ("ditto", {"lam": "1..2"}, {}, "lam is a range"),
        ("ditto", {"lam": "2..1"}, {"sampler": "optuna"}, "lam=2.0..1.0 is not a range"),
        ("fedham", {"form": "faithful..guarded"}, {"sampler": "optuna"}, "form=faithful..guarded is not a range"),
        ("ditto", {"grid": [[1, 2]]}, {}, "grid is itself a list"),
        ("ditto", {"lam": "1,2"}, {"options": {"lam": "1"}}, "lam is both set and searched"),
        ("fedavg", {"lr": "0.1", "training.lr": "0.1"}, {}, "searched twice"),
        ("fedavg", {"refit": "true"}, {}, "leaves no validation samples"),
        ("fedavg", {"lr": "0.1"}, {"settings": {"refit": True}}, "leaves no validation samples"),
        ("knn-per", {"lr": "0.1"}, {}, "knn-per trains no model"),
        ("fedavg", None, {"settings": {"lr": 0.1}}, "fedavg has nothing to search"),
        ("fedavg", {"lr": "0.1"}, {"trials": 0}, "trials=0 is not at least 1"),
        ("fedavg", {"lr": "0.1"}, {"minutes": 0}, "--minutes 0 leaves no time for a trial"),
        ("fedavg", {"lr": "0.1"}, {"sampler": "grids"}, "unknown sampler 'grids'"),
        ("fedavg", {"lr": "0.1"}, {"metric": "aurok"}, "unknown metric 'aurok'"),
        (
            "fedavg",
            {"lr": "0.1"},
            {"metric": "sensitivity"},
            "sensitivity is defined for two classes, and there are 10",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_in_words(writers, tmp_path, method, search, kwargs, message):
    with pytest.raises(UsageError) as error:
        tune(method, writers, tmp_path / "t", search=search, **{"settings": FEW, **kwargs})
    assert message in error.value.message
    assert not (tmp_path / "t").exists()


def test_without_validation_samples_nothing_is_chosen(tmp_path):
    partition("writers", tmp_path / "p", clients=3, fractions=(0.8, 0.0, 0.2))
    with pytest.raises(InputError, match="no validation samples"):
        tune("local", tmp_path / "p", tmp_path / "t", settings=FEW)


def test_where_all_trials_fail_nothing_is_chosen(writers, tmp_path):
    with pytest.raises(ComputationError, match="all 2 trials failed"):
        tune("fedavg", writers, tmp_path / "t", search={"lr": [1e30, 1e31]}, settings=FEW)
    assert not (tmp_path / "t" / "tuning").exists()
