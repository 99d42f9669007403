"""``pfl tune``: trials are ordinary artifacts, validation samples alone decide, and the best is written to a file."""

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
from pflcli.core.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.workflow.tuning import samplers
from pflcli.workflow.tuning import trials as tuning_trials
from pflcli.workflow.tuning.space import Axis, search_space
from pflcli.workflow.tuning.trials import readable

FEW = {"model": "logistic", "rounds": 1, "participation": 1.0}
WORDS = ("--model", "logistic", "--rounds", 1, "--participation", 1.0)
SEARCH = {"training.lr": [0.1, 1.0, 1e30]}
SET = {"lam": 0.1}


def tune_ditto(source, out, **kwargs):
    return tune("ditto", source, out, **{"search": SEARCH, "options": SET, "settings": FEW, **kwargs})


PLANNED = {
    "search": {"training.lr": "0.001..1"},
    "sampler": "random",
    "trials": 4,
    "settings": {"model": "logistic"},
    "execution": Execution(dry_run=True),
}


@pytest.fixture(scope="module")
def writers_partition(tmp_path_factory):
    """The partition that is tuned on; only to be read."""
    path = tmp_path_factory.mktemp("writers") / "p"
    partition("writers", path, clients=6, seed=0)
    return path


@pytest.fixture(scope="module")
def finished_search(writers_partition, tmp_path_factory):
    """A search of three points, one of which diverges; only to be read."""
    out = tmp_path_factory.mktemp("tuned") / "t"
    tune_ditto(writers_partition, out)
    return out


@pytest.fixture
def search_copy(finished_search, tmp_path):
    shutil.copytree(finished_search, tmp_path / "t")
    return tmp_path / "t"


@pytest.fixture
def trials_without_choice(search_copy):
    """The trials without the choice among them, so that nothing is trained again."""
    shutil.rmtree(search_copy / "tuning")
    return search_copy


def search_result(out):
    return tuning.read(open_artifact(out / "tuning"))


def read_trials(out):
    """The trials without the seconds, which nobody can repeat."""
    return [{**row, "seconds": 0} for row in search_result(out)["trials"]]


def read_choice(out):
    return (out / "tuning" / "best.toml").read_bytes()


# What is made


def test_trial_is_the_artifact_that_personalize_makes(writers_partition, finished_search, tmp_path):
    good = [row for row in search_result(finished_search)["trials"] if not row["problem"]]
    assert len(good) == 2
    row = good[-1]
    settings = {**FEW, "lr": row["values"]["training.lr"]}
    personalize("ditto", writers_partition, tmp_path / "x", options=SET, settings=settings)
    same(tmp_path / "x", finished_search / "tuning" / row["path"])
    assert row["fingerprint"] == open_artifact(tmp_path / "x").manifest.fingerprint


def test_diverged_trial_is_recorded_with_its_reason(finished_search):
    bad = [row for row in search_result(finished_search)["trials"] if row["problem"]]
    assert [row["values"]["training.lr"] for row in bad] == [1e30]
    assert all("non-finite" in row["problem"] and row["validation_accuracy"] is None for row in bad)
    summary = open_artifact(finished_search / "tuning").manifest.summary
    assert (summary["trials"], summary["failed"]) == (3, 1)
    assert len((finished_search / "tuning" / "table.md").read_text().splitlines()) == 5


def test_best_trial_is_the_first_of_highest_validation_accuracy(finished_search):
    scored = [row for row in search_result(finished_search)["trials"] if not row["problem"]]
    best = max(row["validation_accuracy"] for row in scored)
    first = next(row for row in scored if row["validation_accuracy"] == best)
    assert search_result(finished_search)["best"] == first["trial"]
    assert open_artifact(finished_search / "tuning").manifest.summary["best"] == first["values"]


def test_table_lists_the_best_trial_first_and_failed_ones_last():
    def trial(number, accuracy, log_loss, problem=""):
        scores = {"validation_accuracy": accuracy, "validation_log_loss": log_loss, "bottom_decile": accuracy}
        return {"trial": number, "values": {"lam": number}, **scores, "seconds": 1.0, "problem": problem}

    trials = [trial(0, 0.5, 1.5), trial(1, None, None, "diverged"), trial(2, 0.75, 1.0), trial(3, 0.25, 0.5)]
    orders = {"accuracy": ["2", "0", "3", "1"], "log_loss": ["3", "2", "0", "1"]}
    for metric, order in orders.items():
        assert [line[0] for line in readable({"metric": metric, "trials": trials})[1]] == order


def test_best_toml_reproduces_the_best_trial_in_personalize_and_compare(
    writers_partition, finished_search, tmp_path, pfl
):
    """What a dry run of either would make is the best trial."""
    best = search_result(finished_search)["trials"][search_result(finished_search)["best"] - 1]
    config = finished_search / "tuning" / "best.toml"
    ran = pfl("personalize", "ditto", writers_partition, "-o", tmp_path / "x", "--config", config, "-n", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["fingerprint"] == best["fingerprint"]
    shutil.copytree(finished_search / "tuning" / best["path"], tmp_path / "c" / "seed-0" / "ditto")
    line = ("--methods", "ditto", "--baseline", "ditto", "--config", config, "-n")
    ran = pfl("compare", writers_partition, "-o", tmp_path / "c", *line)
    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[-1] == "ditto\tup to date"


def test_best_toml_of_fedavg_configures_train_global(writers_partition, tmp_path, pfl):
    line = ("tune", "fedavg", writers_partition, "-o", tmp_path / "t", *WORDS, "--search", "lr=0.03,0.3")
    assert pfl(*line).code == 0
    config = tmp_path / "t" / "tuning" / "best.toml"
    assert pfl("train-global", writers_partition, "-o", tmp_path / "b", "--config", config).code == 0
    values = tomllib.loads(config.read_text())["personalize"]
    assert open_artifact(tmp_path / "b").manifest.request["settings"]["lr"] == values["lr"]


@pytest.fixture(scope="module")
def knn_search(writers_partition, tmp_path_factory):
    """A search of a method that stands on a datastore; only to be read."""
    out = tmp_path_factory.mktemp("neighbours") / "t"
    tune("knn-per", writers_partition, out, search={"k": "1,3"}, settings=FEW)
    return out


def test_tune_makes_the_inputs_of_a_method_once(knn_search, tmp_path):
    assert {path.name for path in knn_search.iterdir()} == {
        *("backbone", "embeddings", "datastore", "trials", "tuning"),
    }
    tune("knn-per", knn_search / "datastore", tmp_path / "d", search={"k": "1,3"})
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"trials", "tuning"}
    assert read_trials(tmp_path / "d") == read_trials(knn_search)


# Made once, and gone on with


def test_repeated_tune_is_up_to_date(writers_partition, search_copy, forbid_training):
    assert tune_ditto(writers_partition, search_copy).decision == "up to date"


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


def test_interrupted_tune_resumes_and_chooses_the_same(writers_partition, finished_search, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tune_ditto(writers_partition, tmp_path / "t", execution=Execution(reporter=Interrupting("trial 3 of 3")))
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "t" / "trials").glob("*/predictions.h5")}
    assert 1 <= len(written) <= 2
    tune_ditto(writers_partition, tmp_path / "t")
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())
    assert (read_choice(tmp_path / "t"), read_trials(tmp_path / "t")) == (
        read_choice(finished_search),
        read_trials(finished_search),
    )


def test_more_trials_extend_a_search_and_fewer_conflict(writers_partition, finished_search, trials_without_choice):
    tune_ditto(writers_partition, trials_without_choice, trials=1)
    assert read_trials(trials_without_choice) == read_trials(finished_search)[:1]
    tune_ditto(writers_partition, trials_without_choice)
    assert read_trials(trials_without_choice) == read_trials(finished_search)
    with pytest.raises(ConflictError):
        tune_ditto(writers_partition, trials_without_choice, trials=2)
    with pytest.raises(ConflictError):
        tune_ditto(writers_partition, trials_without_choice, search={"training.lr": [0.1]})


def test_tune_starts_no_trial_after_the_given_minutes(writers_partition, finished_search, trials_without_choice):
    tune_ditto(writers_partition, trials_without_choice, minutes=1e-6)
    assert len(read_trials(trials_without_choice)) == 1
    assert tune_ditto(writers_partition, trials_without_choice, minutes=1e-6).decision == "up to date"
    tune_ditto(writers_partition, trials_without_choice, minutes=60)
    assert read_trials(trials_without_choice) == read_trials(finished_search)


@pytest.mark.parametrize(
    ("minutes", "score", "count"), [(None, 0.5, 4), (2.0, 0.5, 3), (1.0, 0.5, 2), (0.8, 0.5, 1), (1.0, None, 4)]
)
def test_minutes_of_a_search_include_earlier_trials(minutes, score, count, monkeypatch, tmp_path):
    """A trial takes 50 seconds. Without a score there is nothing to stop with."""
    monkeypatch.setattr(tuning_trials, "run_job", lambda job, call, progress: None)
    monkeypatch.setattr(
        tuning_trials,
        "_score",
        lambda number, point, path, metric: tuning_trials.Trial(number, point, path, 50.0, score),
    )
    sampler = SimpleNamespace(count=4, ask=lambda: {"lr": 0.1}, tell=lambda accuracy: None)
    made = tuning_trials.run(sampler, None, lambda point, rounds: tmp_path, Execution(), 0, 1.0, minutes, "accuracy")
    assert [trial.number for trial in made] == [*range(1, count + 1)]


def test_dry_run_counts_existing_and_new_trials(writers_partition, search_copy, tmp_path, pfl):
    line = ("--search", "training.lr=0.1,1.0,1e30", "--set", "lam=0.1", *WORDS, "-n")
    ran = pfl("tune", "ditto", writers_partition, "-o", tmp_path / "t2", *line, "--trials", 2)
    assert "2 trials of ditto of a grid of 3: 0 up to date, 2 to make" in ran.err
    assert not (tmp_path / "t2").exists()
    shutil.rmtree(search_copy / "tuning")
    assert "2 up to date, 1 to make" in pfl("tune", "ditto", writers_partition, "-o", search_copy, *line).err


def test_force_replaces_only_trials_of_another_request(writers_partition, search_copy):
    before = {path: path.stat().st_mtime_ns for path in search_copy.glob("trials/*/predictions.h5")}
    with pytest.raises(ConflictError):
        tune_ditto(writers_partition, search_copy, settings={**FEW, "rounds": 2})
    assert {path: path.stat().st_mtime_ns for path in before} == before
    tune_ditto(writers_partition, search_copy, search={"training.lr": [1.0, 0.1]}, execution=Execution(force=True))
    assert len(read_trials(search_copy)) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before


# Successive halving

HALVED = {"model": "logistic", "rounds": 20, "participation": 1.0}
RATES = {"training.lr": [0.003, 0.01, 0.03, 0.3]}


@pytest.fixture(scope="module")
def halved_search(writers_partition, tmp_path_factory):
    """Four learning rates, of which two go on after a quarter of 20 rounds; only to be read."""
    out = tmp_path_factory.mktemp("halved") / "t"
    tune("ditto", writers_partition, out, search=RATES, options=SET, settings=HALVED)
    return out


def test_the_best_two_trials_after_a_quarter_of_the_rounds_run_to_the_end(halved_search):
    trials = read_trials(halved_search)
    short = {row["trial"]: row for row in trials if row["rounds"] == 5}
    whole = [row for row in trials if row["rounds"] == 20]
    assert len(short) == len(whole) == 2
    early = {
        path.name: open_artifact(path).manifest.request["settings"]["rounds"]
        for path in (halved_search / "short").iterdir()
    }
    assert early == {f"training.lr={rate}": 5 for rate in RATES["training.lr"]}
    by_early = {row["trial"]: score_early(halved_search, row["values"]) for row in trials}
    assert min(by_early[row["trial"]] for row in whole) >= max(by_early[number] for number in short)
    assert all(row["validation_accuracy"] == pytest.approx(by_early[number]) for number, row in short.items())
    best = max(whole, key=lambda row: row["validation_accuracy"])
    assert search_result(halved_search)["best"] == best["trial"]
    assert readable(search_result(halved_search))[1][0][:3] == [
        str(best["trial"]),
        str(best["values"]["training.lr"]),
        "20",
    ]


def test_two_values_that_are_one_run_are_continued_once(writers_partition, tmp_path):
    """A rate of 0 for the personal models is that of the round."""
    search, settings = {"lr": [0.0, 0.3, 0.001, 0.003]}, {**HALVED, "lr": 0.3}
    tune("ditto", writers_partition, tmp_path / "t", search=search, options=SET, settings=settings)
    rows = {row["values"]["lr"]: row for row in read_trials(tmp_path / "t")}
    early = {rate: row["validation_accuracy"] for rate, row in rows.items() if row["rounds"] == 5}
    assert len(early) == 2
    assert len({0.0, 0.3} & {*early}) == 1


def score_early(out, values):
    held_out = predictions.read(open_artifact(out / "short" / f"training.lr={values['training.lr']}"), "validation")
    return round(float((held_out.parts["p"].argmax(axis=1) == held_out.y).mean()), 6)


def test_continued_trial_has_the_bytes_of_a_run_that_was_longer_from_the_beginning(
    writers_partition, halved_search, tmp_path
):
    row = next(row for row in read_trials(halved_search) if row["rounds"] == 20)
    settings = {**HALVED, "lr": row["values"]["training.lr"]}
    personalize("ditto", writers_partition, tmp_path / "x", options=SET, settings=settings)
    same(tmp_path / "x", halved_search / "tuning" / row["path"])
    path = halved_search / "tuning" / row["path"]
    assert (
        open_artifact(path).manifest.made["seconds"]
        > open_artifact(halved_search / "short" / path.name).manifest.made["seconds"]
    )


def test_interrupted_halving_resumes_and_chooses_the_same(writers_partition, halved_search, tmp_path):
    stop = Execution(reporter=Interrupting("seed 0, finalist 2: continuing"))
    with pytest.raises(KeyboardInterrupt):
        tune("ditto", writers_partition, tmp_path / "t", search=RATES, options=SET, settings=HALVED, execution=stop)
    shutil.rmtree(next(path for path in (tmp_path / "t" / "trials").iterdir() if path.suffix != ".partial"))
    tune("ditto", writers_partition, tmp_path / "t", search=RATES, options=SET, settings=HALVED)
    assert read_trials(tmp_path / "t") == read_trials(halved_search)
    assert read_choice(tmp_path / "t") == read_choice(halved_search)
    assert {path.name for path in (tmp_path / "t").iterdir()} == {"short", "trials", "tuning"}
    assert len([*(tmp_path / "t" / "trials").iterdir()]) == 2


@pytest.mark.parametrize(
    ("settings", "search", "method"),
    [
        pytest.param({"rounds": 19}, RATES, "ditto", id="few rounds"),
        pytest.param({"lr_schedule": "cosine"}, RATES, "ditto", id="cosine"),
        pytest.param({"dp_noise": 1.0, "dp_delta": 1e-3}, RATES, "fedavg", id="private"),
        pytest.param({}, {"training.lr": [0.1, 0.3]}, "ditto", id="two trials"),
        pytest.param({}, {"lr_schedule": ["constant", "cosine"], "lr": [0.1, 0.3]}, "fedavg", id="searched schedule"),
        pytest.param({}, RATES, "local", id="no rounds"),
    ],
)
def test_trials_run_to_the_end_where_a_quarter_would_not_begin_them(
    writers_partition, tmp_path, settings, search, method
):
    planned = tune(
        method,
        writers_partition,
        tmp_path / "t",
        search=search,
        settings={**HALVED, **settings},
        execution=Execution(dry_run=True),
    )
    assert {path.split("/")[-2] for path in (row["path"] for row in planned.summary["plan"])} == {"trials"}


def test_schedule_of_milestones_is_that_of_the_whole_run_in_a_short_trial(writers_partition, tmp_path):
    settings = {**HALVED, "milestones": [3, 15]}
    planned = tune(
        "ditto", writers_partition, tmp_path / "t", search=RATES, settings=settings, execution=Execution(dry_run=True)
    )
    assert {path.split("/")[-2] for path in (row["path"] for row in planned.summary["plan"])} == {"short"}


def test_method_whose_rounds_depend_on_their_number_is_run_anew_to_the_end(writers_partition, tmp_path):
    """PENS explores for half of its rounds: its short trial is no beginning of the whole."""
    tune("pens", writers_partition, tmp_path / "t", search={"training.lr": [0.03, 0.1, 0.3]}, settings=HALVED)
    row = next(row for row in read_trials(tmp_path / "t") if row["rounds"] == 20)
    personalize("pens", writers_partition, tmp_path / "x", settings={**HALVED, "lr": row["values"]["training.lr"]})
    same(tmp_path / "x", tmp_path / "t" / "tuning" / row["path"])


# Borders


@pytest.mark.parametrize(
    ("method", "search", "values", "expected"),
    [
        pytest.param("ditto", {"lam": [0.1, 1.0, 10.0]}, {"lam": 10.0}, {"lam": "largest"}, id="largest"),
        pytest.param("ditto", {"lam": [0.1, 1.0, 10.0]}, {"lam": 1.0}, {}, id="inside"),
        pytest.param("ditto", {"lam": [None, 1.0, 10.0]}, {"lam": 1.0}, {"lam": "smallest"}, id="smallest number"),
        pytest.param("ditto", {"lam": [None, 1.0, 10.0]}, {"lam": None}, {}, id="no number"),
        pytest.param("ditto", {"lam": [0.0, 1.0]}, {"lam": 0.0}, {}, id="end of the option"),
        pytest.param("knn-per", {"k": [1, 3]}, {"k": 1}, {}, id="whole end of the option"),
        pytest.param("knn-per", {"k": [2, 3]}, {"k": 2}, {"k": "smallest"}, id="whole"),
        pytest.param(
            "ditto",
            {"training.lr": [0.1, 0.3], "lam": [1.0]},
            {"training.lr": 0.3, "lam": 1.0},
            {"training.lr": "largest"},
            id="setting",
        ),
    ],
)
def test_value_at_the_border_of_what_was_tried_is_named(method, search, values, expected, tmp_path):
    space = search_space(method, search, {}, {}, "grid")
    trials = [tuning_trials.Trial(n, point, tmp_path, 1.0, 0.5) for n, point in enumerate(space.points(), 1)]
    best = next(trial for trial in trials if trial.point == values)
    assert tuning_trials.find_borders(space, trials, best) == expected


def test_show_names_a_value_at_the_border_of_its_range(halved_search, pfl):
    best = search_result(halved_search)["trials"][search_result(halved_search)["best"] - 1]["values"]["training.lr"]
    assert best == 0.3
    assert search_result(halved_search)["borders"] == {"training.lr": "largest"}
    ran = pfl("show", halved_search / "tuning")
    assert "training.lr=0.3 is the largest value tried" in ran.err


# It cannot cheat


@pytest.fixture(scope="module")
def shuffled_search(writers_partition, tmp_path_factory):
    """The partition with its test labels shuffled, and trials on it."""
    at = tmp_path_factory.mktemp("shuffled")
    tune_ditto(shuffle_test_labels(writers_partition, at / "p"), at / "t")
    return at


def test_choice_does_not_depend_on_test_labels(finished_search, shuffled_search):
    assert read_choice(shuffled_search / "t") == read_choice(finished_search)
    assert read_trials(shuffled_search / "t") == read_trials(finished_search)


@pytest.mark.parametrize("metric", ["log_loss", "balanced_accuracy"])
def test_choice_by_another_metric_does_not_depend_on_test_labels(
    writers_partition, finished_search, shuffled_search, trials_without_choice, tmp_path, metric
):
    shutil.copytree(shuffled_search / "t" / "trials", tmp_path / "s" / "trials")
    tune_ditto(shuffled_search / "p", tmp_path / "s", metric=metric)
    tune_ditto(writers_partition, trials_without_choice, metric=metric)
    assert read_choice(tmp_path / "s") == read_choice(trials_without_choice)
    assert read_trials(tmp_path / "s") == read_trials(trials_without_choice)
    assert read_choice(trials_without_choice) != read_choice(finished_search)


# By another metric


def test_best_trial_is_chosen_by_the_given_metric(writers_partition, trials_without_choice, capsys, pfl):
    """Its score worked out from the stored predictions; of a log-loss the lowest is the best."""
    line = ("--search", "training.lr=0.1,1.0,1e30", "--set", "lam=0.1", *WORDS, "--metric", "log-loss")
    ran = pfl("tune", "ditto", writers_partition, "-o", trials_without_choice, *line)
    assert ran.code == 0, ran.err
    losses = {}
    for row in read_trials(trials_without_choice):
        if row["problem"]:
            assert row["validation_log_loss"] is None
            continue
        held_out = predictions.read(open_artifact(trials_without_choice / "tuning" / row["path"]), "validation")
        p = np.take_along_axis(held_out.parts["p"], held_out.y[:, None], axis=1).astype(float)
        losses[row["trial"]] = -np.log(np.maximum(p, 1e-12)).mean()  # clients by samples: the mean over samples
        assert row["validation_log_loss"] == pytest.approx(losses[row["trial"]], abs=1e-6)
        right = held_out.parts["p"].argmax(axis=1) == held_out.y
        assert row["validation_accuracy"] == pytest.approx(right.mean(), abs=1e-6)
        for name in ("validation_log_loss", "validation_accuracy", "bottom_decile"):
            assert row[name] == round(row[name], 6)
    result = search_result(trials_without_choice)
    assert (result["metric"], result["best"]) == ("log_loss", min(losses, key=losses.get))
    manifest = open_artifact(trials_without_choice / "tuning").manifest
    assert manifest.request["metric"] == "log_loss"
    assert manifest.summary["validation_log_loss"] == pytest.approx(min(losses.values()))
    heading, best = (trials_without_choice / "tuning" / "table.md").read_text().splitlines()[::2][:2]
    assert "validation log-loss | validation accuracy % |" in heading
    assert f"| {min(losses.values()):.3f} |" in best
    assert f"validation log-loss {min(losses.values()):.4f}" in ran.err


def test_tune_fails_when_the_metric_is_undefined_for_every_client(tmp_path):
    """Every client of this partition has one class."""
    partition("writers", tmp_path / "p", scheme="classes", clients=10, options={"n": 1})
    with pytest.raises(ComputationError, match="all 1 trials failed") as error:
        tune("local", tmp_path / "p", tmp_path / "t", search={"lr": [0.1]}, settings=FEW, metric="auroc")
    assert error.value.fix == ("AUROC is not defined: no client has validation samples of two classes",)


def test_tune_reads_only_predictions_on_validation_samples(writers_partition, trials_without_choice, monkeypatch):
    read, splits_read = predictions.read, []
    monkeypatch.setattr(
        predictions, "read", lambda artifact, split: (splits_read.append(split), read(artifact, split))[1]
    )
    tune_ditto(writers_partition, trials_without_choice)
    assert set(splits_read) == {"validation"}


# Ranges


def test_random_sampler_is_deterministic_starts_at_the_default_and_never_repeats(writers_partition, tmp_path):
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
    assert [row["decision"] for row in tune("ditto", writers_partition, tmp_path / "t", **PLANNED).summary["plan"]] == [
        "new"
    ] * 4


def test_random_sampler_on_lists_equals_the_grid():
    lists = search_space("ditto", {"lam": "none,0.1,1", "training.lr": "0.1,1"}, {}, {}, "random")
    default = {"lam": None, "training.lr": 0.1}
    drawn = [samplers.sampler(name, lists, 4, default, 3).points for name in ("grid", "random")]
    assert drawn[0] == drawn[1]


# Optuna


def test_missing_optuna_is_named_with_the_install_command(writers_partition, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="Optuna, which is not installed") as error:
        tune_ditto(writers_partition, tmp_path / "t", sampler="optuna")
    assert error.value.fix == ("pip install 'pflcli[tune]'",)


def propose_points(searched, count, scores=(), seed=0):
    """The points that Optuna proposes, told so."""
    sampler = samplers.sampler("optuna", searched, count, {"training.lr": 0.1, "lam": None}, seed)
    points = []
    for number in range(sampler.count):
        points.append(sampler.ask())
        sampler.tell(scores[number] if number < len(scores) else 0.5)
    return points


def test_optuna_sampler_is_deterministic_starts_at_the_default_and_never_repeats():
    ranges = search_space("ditto", {"training.lr": "0.001..1", "lam": "none,0.1,1"}, {}, {}, "optuna")
    points = propose_points(ranges, 15, [0.1, None, 0.9])
    assert points == propose_points(ranges, 15, [0.1, None, 0.9])
    assert points[:8] == propose_points(ranges, 8, [0.1, None, 0.9])
    assert points[0] == {"training.lr": 0.1, "lam": None}
    assert len({json.dumps(point) for point in points}) == 15
    assert points != propose_points(ranges, 15, [0.1, None, 0.9], seed=1)
    lists = search_space("ditto", {"training.lr": "0.1,1", "lam": "none,0.1,1"}, {}, {}, "optuna")
    assert len({json.dumps(point) for point in propose_points(lists, 50)}) == 6


def test_optuna_sampler_uses_the_range_of_the_grid():
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
def test_optuna_numbers_are_rounded_to_four_digits_within_their_range(bounds, value, expected):
    assert samplers._round(Axis("lr", (), bounds), value) == expected


def test_interrupted_optuna_search_resumes_with_the_same_trials(knn_search, tmp_path):
    datastore = knn_search / "datastore"
    line = {"search": {"k": "1..16"}, "sampler": "optuna", "trials": 4}
    tune("knn-per", datastore, tmp_path / "a", **line)
    with pytest.raises(KeyboardInterrupt):
        tune("knn-per", datastore, tmp_path / "b", **line, execution=Execution(reporter=Interrupting("trial 3 of 4")))
    tune("knn-per", datastore, tmp_path / "b", **line)
    assert (read_choice(tmp_path / "a"), read_trials(tmp_path / "a")) == (
        read_choice(tmp_path / "b"),
        read_trials(tmp_path / "b"),
    )


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
        ("fedavg", {"lr": "0.1"}, {"sampler": "grids"}, "unknown --sampler 'grids'"),
        ("fedavg", {"lr": "0.1"}, {"metric": "aurok"}, "unknown metric 'aurok'"),
        (
            "fedavg",
            {"lr": "0.1"},
            {"metric": "sensitivity"},
            "sensitivity is defined for two classes, and there are 10",
        ),
    ],
)
def test_tune_refuses_invalid_searches_and_names_the_problem(
    writers_partition, tmp_path, method, search, kwargs, message
):
    with pytest.raises(UsageError) as error:
        tune(method, writers_partition, tmp_path / "t", search=search, **{"settings": FEW, **kwargs})
    assert message in error.value.message
    assert not (tmp_path / "t").exists()


def test_tune_refuses_a_partition_without_validation_samples(tmp_path):
    partition("writers", tmp_path / "p", clients=3, fractions=(0.8, 0.0, 0.2))
    with pytest.raises(InputError, match="no validation samples"):
        tune("local", tmp_path / "p", tmp_path / "t", settings=FEW)


def test_tune_writes_no_choice_when_all_trials_fail(writers_partition, tmp_path):
    with pytest.raises(ComputationError, match="all 2 trials failed"):
        tune("fedavg", writers_partition, tmp_path / "t", search={"lr": [1e30, 1e31]}, settings=FEW)
    assert not (tmp_path / "t" / "tuning").exists()
