"""``compare --tune N`` chooses the options of each method by validation samples, with the same budget for all."""

from __future__ import annotations

import json
import shutil

import pytest

from helpers import shuffle_test_labels
from pflcli.artifacts.kinds import evaluation, tuning
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.commands.tune import tune
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.workflow.comparison import tunings
from pflcli.workflow.comparison.request import IncompleteError
from pflcli.workflow.comparison.table import TableOptions
from pflcli.workflow.jobs.graph import LATER

FEW = {"model": "logistic", "rounds": 1, "participation": 1.0}
WORDS = ("--model", "logistic", "--rounds", 1, "--participation", 1.0)
METHODS = ["fedavg", "ditto", "knn-per"]
DRY, FORCE = Execution(dry_run=True), Execution(force=True)


def run(source, out, **kwargs):
    return compare(
        [source], out, references=False, **{"methods": METHODS, "seeds": (0, 1), "tune": 2, "settings": FEW, **kwargs}
    )


@pytest.fixture(scope="module")
def writers_partition(tmp_path_factory):
    """The partition; only to be read."""
    path = tmp_path_factory.mktemp("writers") / "p"
    partition("writers", path, clients=4, seed=0)
    return path


@pytest.fixture(scope="module")
def tuned_comparison(writers_partition, tmp_path_factory):
    """The comparison of three methods under two seeds; only to be read."""
    out = tmp_path_factory.mktemp("tuned") / "c"
    run(writers_partition, out)
    return out


@pytest.fixture
def comparison_copy(tuned_comparison, tmp_path):
    shutil.copytree(tuned_comparison, tmp_path / "c")
    return tmp_path / "c"


def manifest(path):
    return open_artifact(path).manifest


def find_best_trial(out, method):
    """The best trial of a method, and its folder."""
    folder = out / "tune" / method / "tuning"
    record = tuning.read(open_artifact(folder))
    row = record["trials"][record["best"] - 1]
    return row["values"], folder / row["path"]


def read_choices(out):
    return {path.parent.parent.name: path.read_bytes() for path in sorted(out.glob("tune/*/tuning/best.toml"))}


def test_compare_tunes_each_method_like_pfl_tune(writers_partition, tuned_comparison):
    assert {*read_choices(tuned_comparison)} == {*METHODS}
    for method, source in (
        ("fedavg", writers_partition),
        ("ditto", writers_partition),
        ("knn-per", tuned_comparison / "seed-0" / "datastore"),
    ):
        settings = (
            {**FEW, "lr": find_best_trial(tuned_comparison, "fedavg")[0]["training.lr"]} if method == "knn-per" else FEW
        )
        outcome = tune(
            method, source, tuned_comparison / "tune" / method, trials=2, settings=settings, seed=0, execution=DRY
        )
        assert outcome.decision == "up to date"
        assert manifest(outcome.path).summary["trials"] == 2


def test_compare_uses_the_best_trial_of_each_method(tuned_comparison):
    values, trial = find_best_trial(tuned_comparison, "ditto")
    assert manifest(tuned_comparison / "seed-0" / "ditto").fingerprint == manifest(trial).fingerprint
    compared = manifest(tuned_comparison / "comparison").request["methods"]["ditto"]
    assert compared["options"]["lam"] == values["lam"]
    assert manifest(tuned_comparison / "seed-1" / "ditto").request["settings"]["lr"] == values["training.lr"]
    k = find_best_trial(tuned_comparison, "knn-per")[0]["k"]
    assert [manifest(tuned_comparison / f"seed-{seed}" / "knn-per").request["options"]["k"] for seed in (0, 1)] == [
        k,
        k,
    ]


def test_backbone_is_trained_with_the_best_settings_of_fedavg(tuned_comparison):
    lr = find_best_trial(tuned_comparison, "fedavg")[0]["training.lr"]
    assert [manifest(tuned_comparison / f"seed-{seed}" / "backbone").request["settings"]["lr"] for seed in (0, 1)] == [
        lr,
        lr,
    ]
    assert manifest(tuned_comparison / "comparison").request["settings"]["lr"] == lr


def test_table_and_files_record_the_tuning(tuned_comparison):
    assert manifest(tuned_comparison / "comparison").request["tune"] == {"trials": 2, "seed": 0}
    record = evaluation.read(open_artifact(tuned_comparison / "comparison"))["tune"]
    borders = {
        name: tuning.read(open_artifact(tuned_comparison / "tune" / name / "tuning"))["borders"] for name in METHODS
    }
    assert record["methods"] == {
        name: {
            **{"trials": 2, "grid": size, "values": find_best_trial(tuned_comparison, name)[0]},
            **({"borders": borders[name]} if borders[name] else {}),
        }
        for name, size in (("fedavg", 4), ("ditto", 48), ("knn-per", 8))
    }
    notes = (tuned_comparison / "comparison" / "table.md").read_text().splitlines()
    for name, sides in borders.items():
        for key, side in sides.items():
            value = find_best_trial(tuned_comparison, name)[0][key]
            assert [line for line in notes if line.startswith(f"{name}: {key}={value} is the {side} value tried")]
    assert any(borders.values())
    (line,) = [
        text for text in (tuned_comparison / "comparison" / "table.md").read_text().splitlines() if "tuned" in text
    ]
    assert line.startswith("each method tuned with at most 2 trials by accuracy on validation samples, under seed 0: ")
    lr, k = (
        find_best_trial(tuned_comparison, "fedavg")[0]["training.lr"],
        find_best_trial(tuned_comparison, "knn-per")[0]["k"],
    )
    assert f"fedavg: training.lr={lr} (2 of 4); " in line
    assert f"knn-per: k={k} (2 of 8)" in line


def test_repeated_tuned_comparison_is_up_to_date(writers_partition, comparison_copy, forbid_training, pfl):
    line = (
        "compare",
        writers_partition,
        "-o",
        comparison_copy,
        *WORDS,
        "--methods",
        ",".join(METHODS),
        "--seeds",
        "0,1",
        "--tune",
        2,
    )
    ran = pfl(*line)
    assert ran.code == 0, ran.err
    assert f"{comparison_copy}/comparison is up to date" in ran.err
    ran = pfl(*line, "-n")
    assert [row.split("\t")[:2] for row in ran.err.splitlines() if row.startswith("tune ") and "\t" in row] == [
        [f"tune {name}", "up to date"] for name in METHODS
    ]


def test_dry_run_counts_the_tuning_trials(writers_partition, tmp_path, pfl):
    line = (
        "compare",
        writers_partition,
        "-o",
        tmp_path / "c",
        *WORDS,
        "--methods",
        "fedavg,ditto,knn-per",
        "--tune",
        8,
        "-n",
    )
    ran = pfl(*line, "--json")
    assert ran.code == 0, ran.err
    assert "tune: 20 trials of 3 methods to make, then the runs" in ran.err
    assert json.loads(ran.out)["decision"] == "dry run: new"
    assert ran.err.splitlines()[-6:] == [
        *("tune fedavg\t4 trials", "tune ditto\t8 trials", "tune knn-per\t8 trials"),
        *(f"{name}\tafter tuning" for name in METHODS),
    ]
    assert not (tmp_path / "c").exists()


# It cannot cheat


def test_tuned_choices_do_not_depend_on_test_labels(writers_partition, tuned_comparison, tmp_path):
    shuffled = shuffle_test_labels(writers_partition, tmp_path / "p")
    run(shuffled, tmp_path / "s", seeds=(0,))
    assert read_choices(tmp_path / "s") == read_choices(tuned_comparison)
    requests = [manifest(out / "comparison").request["methods"] for out in (tmp_path / "s", tuned_comparison)]
    assert requests[0] == requests[1]


def test_tuning_uses_the_metric_of_the_comparison(writers_partition, comparison_copy):
    shutil.rmtree(comparison_copy / "comparison")
    with pytest.raises(ConflictError) as error:
        run(writers_partition, comparison_copy, metrics=["log_loss", "accuracy"])
    assert 'metric: null -> "log_loss"' in error.value.fix


# What joins, and what is refused


def test_methods_and_seeds_added_later_keep_the_seed_of_the_tuning(writers_partition, comparison_copy):
    run(writers_partition, comparison_copy, methods=["local"], seeds=(1,))
    assert [manifest(comparison_copy / f"seed-{seed}" / "local").kind for seed in (0, 1)] == [
        "predictions",
        "predictions",
    ]
    assert manifest(comparison_copy / "tune" / "local" / "tuning").request["seed"] == 0
    record = evaluation.read(open_artifact(comparison_copy / "comparison"))["tune"]["methods"]
    assert {*record} == {*METHODS, "local"}
    assert record["ditto"]["trials"] == 2


def test_stack_added_later_pools_the_tuned_methods(writers_partition, comparison_copy):
    run(writers_partition, comparison_copy, methods=["stack"])
    assert manifest(comparison_copy / "comparison").request["methods"]["stack"]["options"]["pool"] == sorted(METHODS)


@pytest.mark.parametrize(
    ("budget", "message", "fix"),
    [
        (None, "was made with --tune 2, not without --tune", "--tune 2, or another --out"),
        (3, "was made with --tune 2, not with --tune 3", "--tune 2, or another --out"),
    ],
)
def test_another_tuning_budget_is_a_conflict(writers_partition, comparison_copy, forbid_training, budget, message, fix):
    with pytest.raises(ConflictError, match=message) as error:
        run(writers_partition, comparison_copy, tune=budget)
    assert error.value.fix == (fix,)


def test_force_adds_trials_to_an_existing_tuning(writers_partition, tmp_path):
    out = tmp_path / "c"
    run(writers_partition, out, methods=["fedavg"], seeds=(0,), tune=1)
    before = {path: path.stat().st_mtime_ns for path in out.glob("tune/*/trials/*/predictions.h5")}
    run(writers_partition, out, methods=["fedavg"], seeds=(0,), execution=FORCE)
    assert manifest(out / "comparison").request["tune"]["trials"] == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len([*out.glob("tune/fedavg/trials/*/predictions.h5")]) == 2


def test_compare_with_tune_conflicts_with_runs_without_it(writers_partition, tmp_path, forbid_training):
    (tmp_path / "c" / "seed-0" / "local").mkdir(parents=True)
    with pytest.raises(ConflictError, match="has runs without --tune"):
        run(writers_partition, tmp_path / "c")


def test_compare_with_tune_conflicts_with_a_table_without_it(writers_partition, tmp_path, monkeypatch):
    run(writers_partition, tmp_path / "c", methods=["local"], seeds=(0,), tune=None)
    with pytest.raises(ConflictError, match="was made without --tune, not with --tune 2") as error:
        run(writers_partition, tmp_path / "c", methods=["local"], seeds=(0,))
    assert error.value.fix == ("leave out --tune, or another --out",)


def test_compare_refuses_tune_with_several_partitions(writers_partition, tmp_path, forbid_training):
    partition("writers", tmp_path / "q", clients=4, seed=1)
    with pytest.raises(UsageError, match="--tune needs a single partition") as error:
        compare([writers_partition, tmp_path / "q"], tmp_path / "c", tune=2, references=False)
    assert error.value.fix == (f"pfl compare {writers_partition} -o DIR --seeds 0,1,2 --tune 2",)


def test_wrong_tuning_arguments_are_refused_before_any_training(writers_partition, tmp_path, forbid_training):
    for kwargs, message in (
        ({"tune": 0}, "tune=0 is not at least 1"),
        ({"baseline": "fedprox"}, "'fedprox' is not among the compared methods"),
        ({"link": "fast"}, "fast"),
        ({"metrics": ["sensitivity"]}, "sensitivity is defined for two classes"),
        ({"options": {"ditto": {"lamb": 1}}}, "unknown option 'lamb' for ditto"),
    ):
        with pytest.raises(UsageError, match=message):
            run(writers_partition, tmp_path / "c", **kwargs)
    partition("writers", tmp_path / "q", clients=3, fractions=(0.8, 0.0, 0.2))
    with pytest.raises(InputError, match="no validation samples"):
        run(tmp_path / "q", tmp_path / "c")
    assert not (tmp_path / "c").exists()


# What the user sets stays


def test_table_says_when_a_method_has_nothing_to_tune(writers_partition, tmp_path):
    run(
        writers_partition, tmp_path / "c", methods=["fedavg", "local", "stack"], seeds=(0,), settings={**FEW, "lr": 0.3}
    )
    assert not (tmp_path / "c" / "tune").exists()
    text = (tmp_path / "c" / "comparison" / "table.md").read_text()
    assert "fedavg: nothing to tune; local: nothing to tune; stack: nothing to tune" in text
    assert manifest(tmp_path / "c" / "seed-0" / "local").request["settings"]["lr"] == 0.3


def test_training_settings_of_fedavg_apply_only_to_the_backbone(writers_partition, tmp_path):
    options = {"fedavg": {"steps": "2", "lr": "0.3"}, "ditto": {"lam": "0.5", "lr": "0", "training.lr": "0.03"}}
    few = {**FEW, "epochs": 2}
    run(
        writers_partition,
        tmp_path / "c",
        methods=["fedavg", "ditto"],
        seeds=(0,),
        settings=few,
        options=options,
        tune=1,
    )
    settings = {name: manifest(tmp_path / "c" / "seed-0" / name).request["settings"] for name in ("backbone", "ditto")}
    assert (settings["backbone"]["steps"], settings["backbone"]["lr"]) == (2, 0.3)
    assert (settings["ditto"]["epochs"], settings["ditto"].get("steps", 0), settings["ditto"]["lr"]) == (2, 0, 0.03)
    assert not (tmp_path / "c" / "tune" / "ditto").exists()


def test_tuning_with_refit_uses_artifacts_made_without_refit(writers_partition, tmp_path):
    run(
        writers_partition,
        tmp_path / "c",
        methods=["fedavg", "knn-per"],
        seeds=(0,),
        settings={**FEW, "refit": True},
        tune=1,
    )
    tuned = open_artifact(tmp_path / "c" / "tune" / "knn-per" / "tuning").manifest
    assert tuned.inputs[0].fingerprint == manifest(tmp_path / "c" / "seed-0" / "choosing" / "datastore").fingerprint
    assert manifest(tmp_path / "c" / "seed-0" / "knn-per").request["settings"]["refit"]


def test_method_whose_trials_fail_is_left_out_of_the_tuning_record(writers_partition, tmp_path):
    with pytest.raises(IncompleteError, match="1 of 2 runs failed"):
        run(
            writers_partition,
            tmp_path / "c",
            methods=["local", "ditto"],
            seeds=(0,),
            tune=1,
            options={"ditto": {"lr": 1e30}},
        )
    record = evaluation.read(open_artifact(tmp_path / "c" / "comparison"))["tune"]["methods"]
    assert {*record} == {"fedavg", "local"}


def test_table_keeps_its_tuning_seed_metric_and_earlier_choices(small, tmp_path, monkeypatch):
    def chosen(lr):
        return {"trials": 2, "grid": 4, "values": {"training.lr": lr}}

    table, partitions = tmp_path / "comparison", {0: open_artifact(small.p)}
    request = {"tune": {"trials": 2, "seed": 7}, "metric": ["log-loss", "accuracy"]}
    earlier = {name: chosen(0.1) for name in ("fedavg", "local", "fedper")}
    monkeypatch.setattr(tunings, "read_request", lambda table: request)
    monkeypatch.setattr(tunings, "open_artifact", lambda table: table)
    monkeypatch.setattr(tunings.evaluation, "read", lambda table: {"tune": {"methods": earlier}})
    metrics = [
        TableOptions(None, None, given, None, None).metric(table, partitions[0], force=force)
        for given, force in ((None, False), (("accuracy",), False), (None, True))
    ]
    assert metrics == ["log-loss", "accuracy", "accuracy"]
    budget = tunings.budget(2, table, partitions, metrics[0], force=False)
    assert budget == tunings.Budget(2, 7, "log-loss")
    assert tunings.budget(2, table, partitions, metrics[2], force=True) == tunings.Budget(2, 0, "accuracy")
    choices = {
        "fedavg": tunings.Choice({"training.lr": 0.1}, 2, 4),
        "local": tunings.Choice({"training.lr": 1.0}, 2, 4),
    }
    record = tunings.Tuned({}, {}, budget, choices).record(table, ["local", "fedper"])
    assert record["tune"]["methods"] == {"fedavg": chosen(0.1), "local": chosen(1.0), "fedper": chosen(0.1)}


def test_stack_of_methods_that_were_tuned_before_is_planned_after_tuning(writers_partition, tuned_comparison):
    """It pools FedAvg and kNN-Per of the comparison, which are not requested again."""
    dry = Execution(dry_run=True, force=True)
    planned = run(writers_partition, tuned_comparison, methods=["ditto", "stack"], tune=3, execution=dry)
    decisions = {row["step"]: row["decision"] for row in planned.summary["plan"]}
    assert decisions == {"tune fedavg": "1 trial", "tune ditto": "1 trial", "ditto": LATER, "stack": LATER}
