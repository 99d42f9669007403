"""``pfl compare``: each run is an ordinary artifact, is made once, and is scored as by ``pfl evaluate``."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from helpers import CLASSIFYING
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import MAKERS, compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.show import show
from pflcli.commands.train_global import train_global
from pflcli.core import registry
from pflcli.core.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.evaluation import lineage
from pflcli.methods import local
from pflcli.workflow.comparison.extend import find_comparison
from pflcli.workflow.comparison.request import IncompleteError
from pflcli.workflow.comparison.variants import assign_options, resolve_variants
from pflcli.workflow.training import run_settings

FEW = {"model": "mlp", "rounds": 2, "participation": 0.5}
WORDS = ("--model", "mlp", "--rounds", 2, "--participation", 0.5)
PAIR = ["fedavg", "local"]
FORCE = Execution(force=True)


class Listener:
    """Hears what is said; interrupts after a number of advances."""

    def __init__(self, after=None):
        self.said, self.left = [], after

    def say(self, text):
        self.said.append(text)

    def detail(self, text):
        pass

    @contextmanager
    def progress(self, label, total, completed=0):
        def advance(steps, note):
            self.left = None if self.left is None else self.left - 1
            if self.left == 0:
                raise KeyboardInterrupt

        yield advance


def compare_pair(out, methods=PAIR, seeds=(0, 1), **kwargs):
    return compare([out.parent / "p"], out, methods=methods, seeds=seeds, settings=FEW, references=False, **kwargs)


@pytest.fixture(scope="module")
def finished_comparison(small, tmp_path_factory):
    """The comparison of two methods under two seeds beside its partition; only to be read."""
    out = tmp_path_factory.mktemp("whole") / "c"
    shutil.copytree(small.p, out.parent / "p")
    compare_pair(out)
    return out


@pytest.fixture
def comparison_copy(finished_comparison, tmp_path):
    """A copy of it that a test may change."""
    shutil.copytree(finished_comparison.parent, tmp_path / "mine")
    return tmp_path / "mine" / "c"


@pytest.fixture
def new_folder(small, tmp_path):
    """Where a comparison is to be made, beside its partition."""
    shutil.copytree(small.p, tmp_path / "p")
    return tmp_path / "c"


def list_artifacts(at):
    return sorted(str(path.parent.relative_to(at)) for path in at.rglob("manifest.json"))


def metrics(at):
    return read(open_artifact(at / "comparison"))


def select_repeatable_metrics(methods):
    """All metrics by method but the seconds, which nobody can repeat."""
    return {
        m["label"]: (m["seeds"], {name: value for name, value in m["metrics"].items() if "seconds" not in name})
        for m in methods
    }


# What is made


def test_compare_makes_the_artifacts_that_the_single_commands_make(small, finished_comparison, tmp_path):
    assert list_artifacts(finished_comparison) == [
        "comparison", "seed-0/backbone", "seed-0/fedavg", "seed-0/local", "seed-1/backbone", "seed-1/fedavg",
        "seed-1/local",
    ]  # fmt: skip
    assert show(finished_comparison / "comparison", lineage=True, verify=True)["verified"] == 7
    train_global(small.p, tmp_path / "b", settings=FEW, seed=1)
    personalize("fedavg", tmp_path / "b", tmp_path / "fedavg", seed=1)
    personalize("local", small.p, tmp_path / "local", settings=FEW, seed=1)
    for name in PAIR:
        one, two = (open_artifact(at / name) for at in (finished_comparison / "seed-1", tmp_path))
        assert one.manifest.fingerprint == two.manifest.fingerprint
        assert one.read("predictions.h5") == two.read("predictions.h5")


def test_fedavg_in_a_comparison_uses_the_backbone(finished_comparison):
    facts = open_artifact(finished_comparison / "seed-1" / "fedavg").manifest
    assert [item.kind for item in facts.inputs] == ["backbone"]
    assert facts.made["seconds_inputs"] > 0
    assert facts.summary["rounds"] == 2


def test_options_of_fedavg_apply_to_the_shared_backbone(small, tmp_path):
    options = {"fedavg": {"server": "adam"}, "fedavg@sgd": {}}
    plan = {"options": options, "settings": FEW}
    compare([small.p], tmp_path, methods=["fedavg", "fedavg-plus", "fedavg@sgd"], references=False, **plan)
    (at,) = tmp_path.glob("seed-*")
    manifests = {
        name: open_artifact(at / name).manifest for name in ("backbone", "fedavg", "fedavg-plus", "fedavg@sgd")
    }
    assert {name: item.request["options"].get("server") for name, item in manifests.items()} == {
        "backbone": "adam", "fedavg": "adam", "fedavg-plus": None, "fedavg@sgd": "sgd",
    }  # fmt: skip
    for name in ("fedavg", "fedavg-plus"):
        assert manifests[name].inputs[0].fingerprint == manifests["backbone"].fingerprint


def test_compare_makes_only_the_inputs_that_its_methods_need(new_folder):
    compare_pair(new_folder, ["local"], (3,))
    assert list_artifacts(new_folder) == ["comparison", "seed-3/local"]
    compare_pair(new_folder, ["local", "fedavg-plus"], (3,))
    assert list_artifacts(new_folder) == ["comparison", "seed-3/backbone", "seed-3/fedavg-plus", "seed-3/local"]
    compare_pair(new_folder, ["local", "fedavg-plus", "knn-per"], (3,))
    assert {"seed-3/embeddings", "seed-3/datastore", "seed-3/knn-per"} < {*list_artifacts(new_folder)}


ALL = [name for name in CLASSIFYING if not name.endswith("-extended")]
"""What ``all`` stands for: an extension adds options to a method, and without them is that method once more."""


def test_methods_default_to_all_registered_methods(small, tmp_path):
    outcome = compare([small.p], tmp_path / "c", settings=FEW, execution=Execution(dry_run=True), references=False)
    steps = [step["step"] for step in outcome.summary["plan"]]
    assert steps == ["backbone", "embeddings", "datastore", *ALL]


# What the table says


def test_comparison_has_the_same_metrics_as_evaluate(finished_comparison, tmp_path):
    evaluate([finished_comparison / f"seed-{seed}" / name for seed in (0, 1) for name in PAIR], tmp_path / "e")
    evaluated = read(open_artifact(tmp_path / "e"))
    compared = metrics(finished_comparison)
    assert select_repeatable_metrics(compared["methods"]) == select_repeatable_metrics(evaluated["methods"])
    assert compared["failed"] == {}
    client_rows = (finished_comparison / "comparison" / "clients.csv").read_text().splitlines()
    assert sorted(client_rows) == sorted((tmp_path / "e" / "clients.csv").read_text().splitlines())


def test_table_rows_are_means_and_standard_deviations_over_seeds(finished_comparison, tmp_path):
    each = []
    for seed in (0, 1):
        evaluate([finished_comparison / f"seed-{seed}" / "local"], tmp_path / str(seed))
        each.append(read(open_artifact(tmp_path / str(seed)))["methods"][0]["metrics"])
    row = next(m for m in metrics(finished_comparison)["methods"] if m["label"] == "local")
    for name in ("accuracy", "accuracy_mean", "bottom_decile", "worst", "log_loss"):
        values = [one[name]["value"] for one in each]
        assert row["metrics"][name]["value"] == pytest.approx(np.mean(values))
        assert row["metrics"][name]["std_over_seeds"] == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2))


def test_all_output_files_list_the_best_method_first(finished_comparison):
    compared = metrics(finished_comparison)
    scores = [m["metrics"]["accuracy"]["value"] for m in compared["methods"]]
    labels = [m["label"] for m in compared["methods"]]
    assert scores == sorted(scores, reverse=True)
    assert open_artifact(finished_comparison / "comparison").manifest.summary["best"] == labels[0]
    lines = (finished_comparison / "comparison" / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:] if line.startswith("|")] == labels
    assert lines[2 + len(labels) + 1] == compared["conclusion"]["sentence"]
    with (finished_comparison / "comparison" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == labels
    for row, method in zip(rows, compared["methods"], strict=True):
        for name, metric in method["metrics"].items():
            assert float(row[name]) == pytest.approx(metric["value"], rel=1e-5)
            assert float(row[f"{name}_std_over_seeds"]) == pytest.approx(metric["std_over_seeds"], rel=1e-5)
    low, high = next(m["metrics"]["gain"]["interval"] for m in compared["methods"] if m["label"] == "local")
    row = next(row for row in rows if row["method"] == "local")
    assert (float(row["gain_low"]), float(row["gain_high"])) == pytest.approx((low, high), rel=1e-5)
    assert (finished_comparison / "comparison" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_baseline_option_changes_the_reference_of_gains(comparison_copy):
    with pytest.raises(ConflictError, match="another request") as error:
        compare_pair(comparison_copy, baseline="local")
    assert error.value.fix[0] == 'baseline: "fedavg" -> "local"'
    compare_pair(comparison_copy, baseline="local", execution=FORCE)
    gains = {m["label"]: m["metrics"]["gain"]["value"] for m in metrics(comparison_copy)["methods"]}
    assert gains["local"] == 0.0
    assert gains["fedavg"] != 0.0


# Typed again


def test_repeated_comparison_is_up_to_date(comparison_copy, tree, forbid_training):
    before, written = tree(comparison_copy), (comparison_copy / "comparison").stat().st_mtime_ns
    for methods, seeds in ((PAIR, (0, 1)), (PAIR[::-1], (1, 0))):
        assert compare_pair(comparison_copy, methods, seeds).decision == "up to date"
    after = tree(comparison_copy)
    assert (comparison_copy / "comparison").stat().st_mtime_ns > written  # newer than its inputs, for make
    manifest_before, manifest_after = (files.pop("comparison/manifest.json") for files in (before, after))
    assert manifest_after[0] == manifest_before[0]
    assert manifest_after[1] > manifest_before[1]
    assert after == before


@pytest.mark.parametrize(
    ("methods", "seeds", "says"),
    [
        ([*PAIR, "fedavg-plus"], (0, 1), "replace: adds fedavg-plus"),
        (PAIR, (2, 0, 1), "replace: adds seed 2"),
        (["fedavg-plus", *PAIR], (0, 1, 2), "replace: adds fedavg-plus, seed 2"),
    ],
)
def test_compare_reuses_existing_runs_when_methods_or_seeds_are_added(comparison_copy, tree, methods, seeds, says):
    before = tree(comparison_copy)
    reporter = Listener()
    assert compare_pair(comparison_copy, methods, seeds, execution=Execution(reporter=reporter)).decision == "replace"
    assert says in reporter.said
    after = tree(comparison_copy)
    run_files = {name: content for name, content in before.items() if name.count("/") == 2}
    assert {name.split("/")[1] for name in run_files} == {"backbone", *PAIR}
    assert run_files.items() <= after.items()
    assert {(m["label"], *m["seeds"]) for m in metrics(comparison_copy)["methods"]} == {
        (m, *sorted(seeds)) for m in methods
    }


@pytest.mark.parametrize("name", PAIR)
def test_seed_partition_is_found_through_any_run_of_the_seed(comparison_copy, name):
    shutil.rmtree(comparison_copy / "seed-1" / name)
    dry = Execution(dry_run=True)
    assert compare_pair(comparison_copy, [*PAIR, "prior"], (0,), execution=dry).request["seeds"] == [0, 1]
    for other in PAIR:
        shutil.rmtree(comparison_copy / "seed-1" / other, ignore_errors=True)
    with pytest.raises(InputError, match="no longer exists"):
        compare_pair(comparison_copy, [*PAIR, "prior"], (0,), execution=dry)


def test_find_comparison_requires_the_same_weights_and_settings(comparison_copy):
    training = run_settings.resolve_settings({}, FEW, open_artifact(comparison_copy.parent / "p"))
    table = comparison_copy / "comparison"
    assert find_comparison(table, "comparison", training, None) is not None
    assert find_comparison(table, "comparison", training, "0" * 64) is None
    assert find_comparison(table, "comparison", replace(training, lr=0.5), None) is None


def test_compare_keeps_the_methods_and_options_of_an_existing_table(comparison_copy, tree):
    """More methods and seeds join what is there, with the options that each was compared with."""
    options = {"local": {"epochs": "1"}, "fedavg@slow": {"lr": "0.01"}}
    compare_pair(comparison_copy, [*PAIR, "fedavg@slow"], options=options, execution=FORCE)
    before = tree(comparison_copy)
    reporter = Listener()
    compare_pair(comparison_copy, ["fedavg-plus"], (0,), execution=Execution(reporter=reporter))
    assert all(text in reporter.said[0] for text in (f"{comparison_copy}/comparison", "fedavg, local, fedavg@slow"))
    assert any("adds fedavg-plus" in line for line in reporter.said)
    seeds = {m["label"]: m["seeds"] for m in metrics(comparison_copy)["methods"]}
    assert seeds == {name: [0, 1] for name in [*PAIR, "fedavg@slow", "fedavg-plus"]}
    compare_pair(comparison_copy, ["local"], (2,))
    facts = open_artifact(comparison_copy / "comparison").manifest.request
    assert facts["seeds"] == [0, 1, 2]
    assert facts["methods"]["local"]["options"]["epochs"] == 1
    assert facts["methods"]["fedavg@slow"]["settings"] == {"lr": 0.01}
    assert open_artifact(comparison_copy / "seed-2" / "fedavg@slow").manifest.request["settings"]["lr"] == 0.01
    after = tree(comparison_copy)
    assert all(after[name] == before[name] for name in before if name.startswith("seed") and "/" in name[7:])


def test_metric_can_be_added_to_an_existing_table(comparison_copy, tree, forbid_training):
    before = tree(comparison_copy)
    reporter = Listener()
    assert (
        compare_pair(comparison_copy, metrics=["auroc", "f1"], execution=Execution(reporter=reporter)).decision
        == "replace"
    )
    assert "replace: adds metric auroc,f1" in reporter.said
    assert {name.split("/")[0] for name, content in tree(comparison_copy).items() if before.get(name) != content} == {
        "comparison"
    }
    values = [method["metrics"]["auroc"]["value"] for method in metrics(comparison_copy)["methods"]]
    assert values == sorted(values, reverse=True)
    assert compare_pair(comparison_copy).decision == "up to date"  # what the table shows need not be typed again
    with pytest.raises(ConflictError, match="another request"):
        compare_pair(comparison_copy, metrics=["f1"])
    assert compare_pair(comparison_copy, metrics=["accuracy"], execution=FORCE).decision == "replace"
    assert "metric" not in metrics(comparison_copy)


def test_compare_extends_the_old_table_when_it_was_killed_before_the_new_one_was_there(comparison_copy):
    for added in "fedavg-plus", "local":
        (comparison_copy / "comparison").rename(comparison_copy / "comparison.partial.old")
        compare_pair(comparison_copy, [added], (0,))
        assert {m["label"] for m in metrics(comparison_copy)["methods"]} == {*PAIR, "fedavg-plus"}
        assert not (comparison_copy / "comparison.partial.old").exists()


def test_compare_of_a_subset_of_the_table_is_up_to_date(comparison_copy, tree, forbid_training):
    before = tree(comparison_copy)
    assert compare_pair(comparison_copy, ["local"], (1,)).decision == "up to date"
    assert {name: content for name, (content, _) in tree(comparison_copy).items()} == {
        name: content for name, (content, _) in before.items()
    }


def test_changed_options_of_a_method_are_a_conflict_naming_the_method(pfl, comparison_copy, tree, forbid_training):
    before = tree(comparison_copy)
    line = (
        "compare",
        comparison_copy.parent / "p",
        "-o",
        comparison_copy,
        *WORDS,
        "--methods",
        "local,fedavg-plus",
        "--seeds",
        "0,1",
    )
    ran = pfl(*line, "--set", "local.epochs=1", "--set", "local.lr=0.5")
    assert ran.code == 4
    assert ran.err.splitlines() == [
        f"pfl: {comparison_copy}/comparison compares these methods with other options",
        "     local: epochs: 0 -> 1",
        "     local: lr: null -> 0.5",
        "     --methods local@other and the same options add a variant; --force replaces these methods",
    ]
    assert tree(comparison_copy) == before


def test_compare_refuses_another_partition(comparison_copy, small):
    partition("writers", comparison_copy.parent / "fewer", clients=5, seed=7)
    with pytest.raises(ConflictError, match="is another partition") as error:
        compare([comparison_copy.parent / "fewer"], comparison_copy, methods=["local"], settings=FEW, references=False)
    assert error.value.fix[0] == "clients: 6 -> 5"


def test_changed_settings_are_refused_before_any_training(comparison_copy, tree, forbid_training):
    before = tree(comparison_copy)
    other = {**FEW, "rounds": 1}
    for execution in (Execution(), Execution(dry_run=True)):
        with pytest.raises(ConflictError, match="seed-0/backbone exists") as error:
            compare(
                [comparison_copy.parent / "p"],
                comparison_copy,
                methods=PAIR,
                seeds=(0, 1),
                settings=other,
                execution=execution,
                references=False,
            )
        assert error.value.fix == ("settings.rounds: 2 -> 1", "--force replaces it")
    assert tree(comparison_copy) == before


def test_force_replaces_only_runs_that_differ(comparison_copy, tree):
    before = tree(comparison_copy)
    options = {"local": {"epochs": "1"}}
    with pytest.raises(ConflictError, match="other options"):
        compare_pair(comparison_copy, options=options)
    compare_pair(comparison_copy, options=options, execution=FORCE)
    after = tree(comparison_copy)
    changed = {name.split("/")[1] for name in before if name.count("/") == 2 and after[name] != before[name]}
    assert changed == {"local"}
    assert open_artifact(comparison_copy / "seed-1" / "local").manifest.request["options"]["epochs"] == 1


def test_deleted_backbone_is_not_rebuilt_when_unneeded(comparison_copy, forbid_training):
    shutil.rmtree(comparison_copy / "seed-0" / "backbone")
    shutil.rmtree(comparison_copy / "comparison")
    assert compare_pair(comparison_copy).decision == "new"
    assert not (comparison_copy / "seed-0" / "backbone").exists()


def test_deleted_backbone_is_rebuilt_identically_when_needed(comparison_copy, tree):
    before = tree(comparison_copy)
    shutil.rmtree(comparison_copy / "seed-0" / "backbone")
    reporter = Listener()
    compare_pair(comparison_copy, [*PAIR, "fedavg-plus"], execution=Execution(reporter=reporter))
    assert reporter.said[0] == "3 methods, 2 seeds: 3 artifacts to make, 5 up to date"
    name = "seed-0/backbone/weights.safetensors"
    assert tree(comparison_copy)[name][0] == before[name][0]


# Failures


def test_compare_finishes_the_other_methods_when_one_fails(pfl, small, tmp_path):
    out = tmp_path / "c"
    line = ("compare", small.p, "-o", out, *WORDS, "--seeds", "0,1", "--methods", "fedavg,fedavg-plus,local")
    for _ in range(2):
        ran = pfl(*line, "--set", "fedavg-plus.lr=1e9")
        assert (ran.code, ran.out) == (5, f"{out}/comparison\n")
        lines = ran.err[ran.err.index("pfl: ") :].splitlines()
        assert lines[0].startswith("pfl: 2 of 6 runs failed")
        for seed, reason in zip((0, 1), lines[1:3], strict=True):
            assert reason.startswith(f"     seed {seed}, fedavg-plus: the parameters of all clients ")
        assert lines[3:] == ["     a smaller --lr may help"]
        assert select_repeatable_metrics(metrics(out)["methods"]).keys() == {"fedavg", "local"}
        assert metrics(out)["failed"] == {"fedavg-plus": [0, 1]}
        assert "`fedavg-plus` failed under seed 0, 1" in (out / "comparison" / "table.md").read_text()
    ran = pfl(*line, "--set", "fedavg-plus.lr=0.01")
    assert ran.code == 0
    assert "replace: adds fedavg-plus, seed 0, fedavg-plus, seed 1\n" in ran.err
    assert len(metrics(out)["methods"]) == 3


def test_variant_suggested_by_a_conflict_can_be_added(pfl, small, tmp_path):
    (tmp_path / "best.toml").write_text("[compare]\nset = { knn-per = { k = 3 } }\n")
    line = ("compare", small.p, "-o", tmp_path / "c", "--model", "logistic", "--rounds", 1, "--methods")
    assert pfl(*line, "fedavg,knn-per").code == 0
    ran = pfl(*line, "fedavg,knn-per", "--config", tmp_path / "best.toml")
    assert (ran.code, "--methods knn-per@other and the same options add a variant" in ran.err) == (4, True)
    assert pfl(*line, "knn-per@other", "--config", tmp_path / "best.toml").code == 0
    request = open_artifact(tmp_path / "c" / "comparison").manifest.request["methods"]
    assert {name: request[name]["options"]["k"] for name in ("knn-per", "knn-per@other")} == {
        "knn-per": 10,
        "knn-per@other": 3,
    }
    ran = pfl(*line, "knn-per@other", "--set", "knn-per@other.k=5")
    assert (ran.code, "--methods knn-per@other --set knn-per@other.KEY=VALUE" in ran.err) == (4, True)


def test_failed_method_is_removed_when_it_is_no_longer_requested(pfl, small, tmp_path):
    out = tmp_path / "c"
    line = ("compare", small.p, "-o", out, *WORDS)
    assert pfl(*line, "--methods", "fedavg,fedavg-plus", "--set", "fedavg-plus.lr=1e9").code == 5
    ran = pfl(*line, "--methods", "fedavg")
    assert ran.code == 0
    assert "replace: leaves out fedavg-plus, without results\n" in ran.err
    assert metrics(out)["failed"] == {}
    assert "fedavg-plus" not in (out / "comparison" / "table.md").read_text()
    assert pfl(*line, "--methods", "fedavg").err.count("up to date")


def test_failed_backbone_of_one_seed_skips_only_its_dependants(new_folder, small, monkeypatch):
    def fail(source, out, *, seed, **kwargs):
        if seed == 1 and not kwargs["execution"].dry_run:
            raise ComputationError("fedavg, round 2: client 3 became non-finite", "a smaller --lr may help")
        return train_global(source, out, seed=seed, **kwargs)

    monkeypatch.setitem(MAKERS, "backbone", fail)
    with pytest.raises(IncompleteError) as error:
        compare_pair(new_folder, ["fedavg", "knn-per", "local"])
    assert error.value.message.startswith("2 of 6 runs failed")
    assert error.value.fix == (
        "seed 1, backbone: fedavg, round 2: client 3 became non-finite",
        "seed 1, fedavg, knn-per: not run without it",
        "a smaller --lr may help",
    )
    assert error.value.outcome.summary["failed"] == {"fedavg": [1], "knn-per": [1]}
    seeds = {m["label"]: m["seeds"] for m in metrics(new_folder)["methods"]}
    assert seeds == {"fedavg": [0], "knn-per": [0], "local": [0, 1]}


def test_compare_finishes_the_other_methods_when_one_raises(new_folder, monkeypatch):
    monkeypatch.setattr(local, "personalize", lambda run, state, clients: 1 / 0)
    with pytest.raises(IncompleteError, match="1 of 2 runs failed") as error:
        compare_pair(new_folder, seeds=(0,))
    assert error.value.fix == ("seed 0, local: a bug: ZeroDivisionError: division by zero",)
    assert list_artifacts(new_folder) == ["comparison", "seed-0/backbone", "seed-0/fedavg"]


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError("CUDA out of memory")],
)
def test_compare_finishes_the_other_methods_when_one_is_out_of_memory(new_folder, monkeypatch, error):
    def fail(run, state, clients):
        raise error

    monkeypatch.setattr(local, "personalize", fail)
    with pytest.raises(IncompleteError, match="1 of 2 runs failed") as failed:
        compare_pair(new_folder, seeds=(0,))
    assert failed.value.fix[0] == "seed 0, local: out of memory"
    assert "--batch-size" in failed.value.fix[1]


def test_compare_writes_no_table_when_all_runs_fail(new_folder, monkeypatch):
    monkeypatch.setattr(local, "personalize", lambda run, state, clients: 1 / 0)
    with pytest.raises(ComputationError, match="all runs failed") as error:
        compare_pair(new_folder, ["local"], (0,))
    assert error.value.fix == ("seed 0, local: a bug: ZeroDivisionError: division by zero",)
    assert list_artifacts(new_folder) == []


def test_compare_refuses_a_damaged_partition(small, tmp_path):
    shutil.copytree(small.p, tmp_path / "p")
    (tmp_path / "p" / "samples.h5").write_bytes(b"")
    with pytest.raises(InputError, match=r"samples\.h5 differs from what was written"):
        compare([tmp_path / "p"], tmp_path / "c", methods=PAIR, settings=FEW, references=False)


@pytest.fixture
def fedavg_and_unsuited_local(monkeypatch):
    """FedAvg and Local alone exist, and Local wants to know what the partition does not."""

    def refuse(run):
        raise InputError("the clusters are not known")

    names = registry.names
    monkeypatch.setattr(registry, "names", lambda group: ["fedavg", "local"] if group == "methods" else names(group))
    monkeypatch.setattr(local, "setup", refuse, raising=False)


def test_methods_all_leaves_out_methods_that_do_not_suit_the_data(new_folder, fedavg_and_unsuited_local):
    reporter = Listener()
    for decision in ("new", "up to date"):
        assert compare_pair(new_folder, ["all"], execution=Execution(reporter=reporter)).decision == decision
        assert reporter.said.count("local is left out: the clusters are not known") == 1
        reporter.said.clear()
    manifest = open_artifact(new_folder / "comparison").manifest
    assert list(manifest.request["methods"]) == ["fedavg"]
    assert manifest.summary["failed"] == {}
    metrics = read(open_artifact(new_folder / "comparison"))
    assert metrics["left_out"]["local"] == "the clusters are not known"


def test_named_method_that_does_not_suit_the_data_fails(new_folder, fedavg_and_unsuited_local):
    with pytest.raises(IncompleteError) as error:
        compare_pair(new_folder, seeds=(0,))
    assert error.value.fix == ("seed 0, local: the clusters are not known",)


# Interrupted


@pytest.mark.parametrize("after", [1, 3, 6])
def test_interrupted_comparison_resumes_with_the_same_bytes(new_folder, finished_comparison, after):
    with pytest.raises(KeyboardInterrupt):
        compare_pair(new_folder, execution=Execution(reporter=Listener(after)))
    assert not (new_folder / "comparison").exists()
    compare_pair(new_folder)
    assert list_artifacts(new_folder) == list_artifacts(finished_comparison)
    assert select_repeatable_metrics(metrics(new_folder)["methods"]) == select_repeatable_metrics(
        metrics(finished_comparison)["methods"]
    )
    for seed in ("seed-0", "seed-1"):
        for name in PAIR:
            file = f"{seed}/{name}/predictions.h5"
            assert (new_folder / file).read_bytes() == (finished_comparison / file).read_bytes()


def test_compare_removes_what_a_killed_run_replaced(comparison_copy, forbid_training):
    shutil.rmtree(comparison_copy / "comparison")
    run = comparison_copy / "seed-0" / "local"
    shutil.copytree(run, run.with_name("local.partial.old"))
    compare_pair(comparison_copy)
    assert not run.with_name("local.partial.old").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_comparison_is_resumed_by_the_same_command(spawn, pfl, small, tmp_path, number):
    out = tmp_path / "c"
    words = ("--model", "mlp", "--rounds", 120, "--participation", 0.2, "--methods", "fedavg", "--eval-every", 50)
    words += ("--no-references",)
    process = spawn("compare", small.p, "-o", out, *words)
    saved = out / "seed-0" / "backbone.partial" / "checkpoint" / "state.safetensors"
    patience = time.monotonic() + 60
    while not saved.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < patience, "no checkpoint came"
        time.sleep(0.002)
    process.send_signal(number)
    stdout, err = process.communicate(timeout=60)
    assert stdout == ""
    assert saved.exists(), "it had ended before the signal came"
    line = ["pfl", "compare", str(small.p), "-o", str(out), *map(str, words)]
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err.splitlines()[-2:] == ["pfl: interrupted; to resume, run again:", f"     {shlex.join(line)}"]
    ran = pfl(*line[1:])
    assert (ran.code, ran.out) == (0, f"{out}/comparison\n")
    assert "seed 0, backbone: resuming after round " in ran.err
    assert len(metrics(out)["methods"]) == 1


# Dry runs and the command line


def test_dry_run_changes_no_file(pfl, comparison_copy, tree):
    before = tree(comparison_copy)
    line = (
        "compare",
        comparison_copy.parent / "p",
        "-o",
        comparison_copy,
        *WORDS,
        "--methods",
        "fedavg,knn-per,local",
        "--seeds",
        "0,1,2",
        "-n",
    )
    ran = pfl(*line)
    assert (ran.code, ran.out) == (0, f"{comparison_copy}/comparison\n")
    decision, needs, *table = (line for line in ran.err.splitlines() if not line.startswith("estimate: "))
    assert all(
        text in decision for text in (f"comparison {comparison_copy}/comparison", "replace", "adds knn-per, seed 2")
    )
    assert needs.startswith("needs about ")
    assert table[0].endswith("\tprocessor seconds\tMB of disk")
    assert ["\t".join(line.split("\t")[:4]) for line in table] == [
        "\tseed 0\tseed 1\tseed 2",
        "backbone\tup to date\tup to date\tnew",
        "embeddings\tnew\tnew\tnew",
        "datastore\tnew\tnew\tnew",
        "fedavg\tup to date\tup to date\tnew",
        "knn-per\tnew\tnew\tnew",
        "local\tup to date\tup to date\tnew",
    ]
    facts = json.loads(pfl(*line, "--json", "-q").out)
    assert facts["decision"] == "dry run: replace"
    assert facts["summary"]["plan"][3] == {
        "seed": 0,
        "step": "fedavg",
        "path": f"{comparison_copy}/seed-0/fedavg",
        "decision": "up to date",
    }
    assert tree(comparison_copy) == before


def test_dry_run_creates_no_folder(pfl, small, tmp_path):
    ran = pfl("compare", small.p, "-o", tmp_path / "deep" / "c", *WORDS, "--methods", "fedavg,local", "-n")
    assert ran.code == 0
    assert list(tmp_path.iterdir()) == []


def test_compare_json_prints_one_object(pfl, finished_comparison):
    line = (
        "compare",
        finished_comparison.parent / "p",
        "-o",
        finished_comparison,
        *WORDS,
        "--methods",
        "fedavg,local",
        "--seeds",
        "0,1",
        "--json",
    )
    ran = pfl(*line)
    manifest = open_artifact(finished_comparison / "comparison").manifest
    assert ran.code == 0
    assert json.loads(ran.out) == {
        "path": f"{finished_comparison}/comparison",
        "kind": "comparison",
        "decision": "up to date",
        "fingerprint": manifest.fingerprint,
        "request": manifest.request,
        "summary": manifest.summary,
    }
    assert manifest.summary["predictions"] == 4
    assert manifest.request["methods"]["local"]["settings"] == {}
    assert "up to date" in ran.err
    assert pfl(*line[:-1], "-q").err == ""
    displayed = pfl("show", finished_comparison / "comparison")
    assert [*displayed.out.splitlines(), *displayed.err.splitlines()] == pfl(*line[:-1]).err.splitlines()[1:]


def test_config_file_sets_options_of_methods(pfl, small, tmp_path):
    (tmp_path / "pfl.toml").write_text(
        '[compare]\nmethods = ["fedavg-plus", "local"]\nseeds = [4, 2]\nrounds = 3\nmodel = "mlp"\n'
        'set.local.epochs = 2\nset.local.lr = 0.05\nset."fedavg-plus".trainable = "head."\n'
    )
    ran = pfl("compare", small.p, "-o", tmp_path / "c", "--config", tmp_path / "pfl.toml", "-n", "--json", "-q")
    assert ran.code == 0, ran.err
    request = json.loads(ran.out)["request"]
    assert request["seeds"] == [2, 4]
    assert request["settings"]["rounds"] == 3
    assert request["methods"]["local"]["options"]["epochs"] == 2
    assert request["methods"]["local"]["settings"] == {"lr": 0.05}
    assert request["methods"]["fedavg-plus"]["options"]["trainable"] == "head."


def test_options_of_a_method_apply_to_its_variants_unless_it_is_compared_itself():
    options = {"knn-per": {"k": 3, "steps": 7}, "knn-per@b": {"k": 4, "epochs": 2}}
    assigned = assign_options(["fedavg", "knn-per@a", "knn-per@b"], options)
    assert assigned == {"knn-per@a": {"k": 3, "steps": 7}, "knn-per@b": {"k": 4, "epochs": 2}}
    for methods in (["knn-per", "knn-per@b"], ["all", "knn-per@b"]):
        assert assign_options(methods, options) == options


def test_training_setting_of_one_method_does_not_change_the_backbone(comparison_copy):
    with pytest.raises(ConflictError, match="other options"):
        compare_pair(comparison_copy, options={"fedavg": {"lr": "0.2"}})
    compare_pair(comparison_copy, options={"fedavg": {"lr": "0.2"}}, execution=FORCE)
    own, shared = (open_artifact(comparison_copy / "seed-0" / name).manifest for name in ("fedavg", "backbone"))
    assert (own.request["settings"]["lr"], shared.request["settings"]["lr"]) == (0.2, 0.1)
    assert [item.kind for item in own.inputs] == ["partition"]


def test_compare_takes_one_seed_from_each_of_several_partitions(pfl, small, tmp_path):
    partition("writers", tmp_path / "p1", clients=6, seed=1)
    sources = (tmp_path / "p1", small.p)
    ran = pfl("compare", *sources, "-o", tmp_path / "c", *WORDS, "--methods", "local")
    assert ran.code == 0
    manifests = [open_artifact(tmp_path / "c" / f"seed-{seed}" / "local").manifest for seed in (0, 1)]
    assert [m.request["seed"] for m in manifests] == [0, 1]
    assert [m.inputs[0].fingerprint for m in manifests] == [
        open_artifact(p).manifest.fingerprint for p in sources[::-1]
    ]
    assert metrics(tmp_path / "c")["methods"][0]["seeds"] == [0, 1]
    with pytest.raises(UsageError, match="--seeds needs a single partition"):
        compare(sources, tmp_path / "d", seeds=(0, 1), references=False)
    with pytest.raises(UsageError, match="were both drawn with seed 0"):
        compare([small.p, small.p], tmp_path / "d", references=False)


W = "compare {p} -o {out} --model mlp --rounds 1 "
WRONG = {
    "no output": ("compare {p}", 2, "missing option '--out'"),
    "no partition": ("compare -o {out}", 2, "missing argument 'PARTITION...'"),
    "a method that is none": (W + "--methods fedavg,lokal", 2, "unknown method 'lokal'", "did you mean 'local'?"),
    "a method that is none, with options": (W + "--methods lokal --set local.epochs=2", 2, "unknown method 'lokal'"),
    "a method twice": (W + "--methods local,local", 2, "local is given twice"),
    "no method": (W + "--methods ,", 2, "no methods to compare", "--methods fedavg,local"),
    "all and another": (W + "--methods all,local", 2, "local is given twice", "local,local@other"),
    "seeds in words": (W + "--seeds one", 2, "--seeds one", "--seeds 0,1,2"),
    "a seed twice": (W + "--seeds 1,1", 2, "--seeds 1,1"),
    "a seed below zero": (W + "--seeds 0,-1", 2, "--seeds 0,-1", "--seeds 0,1,2"),
    "an option of nobody": (W + "--set lam=1", 2, "does not name a method", "--set METHOD.lam=1"),
    "an option of another": (W + "--methods local --set knn-per.k=1", 2, "knn-per, which is not compared"),
    "an unknown option": (W + "--set local.epoch=1", 2, "unknown option 'epoch' for local", "did you mean 'epochs'?"),
    "an option that does not fit": (W + "--set knn-per.k=0", 2, "k=0 does not fit knn-per"),
    "a setting that does not fit": (W + "--set local.rounds=-1", 2, "rounds=-1 does not fit the training of local"),
    "a baseline that is not compared": (W + "--methods fedavg --baseline local", 2, "'local' is not among"),
    "an unknown metric": (W + "--metric auroc,recal", 2, "unknown metric 'recal'", "choose from: accuracy, auroc"),
    "a metric of two classes": (W + "--metric sensitivity", 2, "sensitivity is defined for two classes, and there are"),
    "an unknown model": ("compare {p} -o {out} --model mlpp --rounds 1", 2, "unknown model 'mlpp'"),
    "predictions to compare on": (
        "compare {knn} -o {out}",
        3,
        "contains predictions, but this command needs a partition",
    ),
    "nothing to compare on": ("compare {out} -o {out}", 3, "does not exist"),
    "a partition without test samples": ("compare {untested} -o {out}", 3, "has no test samples to score"),
    "an artifact in the way": ("compare {p} -o {p}", 4, "{p} is a pfl artifact itself", "choose another folder"),
    "a file in the way": ("compare {p} -o {file}", 4, "{file} exists and is not a folder"),
    "a table in the way": ("compare {p} -o {taken}", 4, "comparison exists and is not a pfl artifact"),
}


@pytest.fixture(scope="module")
def paths(small, tmp_path_factory):
    at = tmp_path_factory.mktemp("places")
    partition("writers", at / "untested", clients=2, fractions=(0.8, 0.2, 0))
    (at / "file").write_text("")
    (at / "taken" / "comparison").mkdir(parents=True)
    (at / "taken" / "comparison" / "notes.txt").write_text("mine")
    return {"p": small.p, "knn": small.knn, **{name: at / name for name in ("untested", "file", "taken", "out")}}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused_before_any_training(pfl, paths, forbid_training, case):
    line, code, *words = WRONG[case]
    ran = pfl(*(part.format(**paths) for part in line.split()))
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert ran.err.startswith("pfl: ")
    for word in words:
        assert word.format(**paths) in ran.err
    assert not paths["out"].exists()


def test_comparison_without_fedavg_has_no_gains(new_folder):
    reporter = Listener()
    compare_pair(new_folder, ["local"], (0,), execution=Execution(reporter=reporter))
    assert "gain" not in metrics(new_folder)["methods"][0]["metrics"]
    assert any("fedavg, which is not in the table" in line for line in reporter.said)


def test_option_set_to_its_current_value_does_not_change_the_request(comparison_copy, forbid_training):
    options = {"local": {"epochs": "0"}, "fedavg": {"rounds": "2"}}
    assert compare_pair(comparison_copy, options=options).decision == "up to date"


# Variants of one method


def test_variants_of_a_method_have_separate_rows(new_folder, small):
    compare(
        [new_folder.parent / "p"],
        new_folder,
        methods=["fedavg", "local", "local@longer"],
        options={"local@longer": {"epochs": "7"}},
        settings=FEW,
        references=False,
    )
    assert {m["label"] for m in metrics(new_folder)["methods"]} == {"fedavg", "local", "local@longer"}
    epochs = [
        open_artifact(new_folder / "seed-0" / name).manifest.request["options"]["epochs"]
        for name in ("local", "local@longer")
    ]
    assert epochs == [0, 7]
    methods = {
        open_artifact(new_folder / "seed-0" / name).manifest.request["method"] for name in ("local", "local@longer")
    }
    assert methods == {"local"}


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["local", "local"], "given twice"),
        (["local@"], "the name of a variant"),
        (["local@a/b"], "the name of a variant"),
        (["locl@a"], "locl"),
    ],
)
def test_invalid_variants_are_refused(new_folder, methods, message):
    with pytest.raises(UsageError, match=message):
        compare([new_folder.parent / "p"], new_folder, methods=methods, settings=FEW, references=False)


def test_variants_can_be_combined_with_all_methods():
    variants = resolve_variants(
        ["all", "panm@grad"], {"panm@grad": {"metric": "grad"}}, run_settings.resolve_settings({}, {})
    )
    assert [entrant.name for entrant in variants] == [*ALL, "panm@grad"]
    assert (variants[-1].method, variants[-1].options["metric"]) == ("panm", "grad")


def test_positive_class_can_be_added_to_a_comparison(pfl, tmp_path):
    """The patients are trained once; each class then has its own sensitivity, which is the other's specificity."""
    at, out = tmp_path / "p", tmp_path / "c"
    assert pfl("partition", "heart-disease", "-o", at).code == 0
    words = ("compare", at, "-o", out, "--methods", "fedavg", "--model", "logistic", "--rounds", 3)
    metric = ("--metric", "sensitivity,specificity")
    assert pfl(*words, *metric).code == 0

    def values():
        row = metrics(out)["methods"][0]["metrics"]
        return [[row[f"{name}{part}"]["value"] for part in ("", "_mean")] for name in ("sensitivity", "specificity")]

    classes = codebook.read(open_artifact(at)).class_names(2)
    before = values()
    assert before[0] != before[1]
    ran = pfl(*words, *metric, "--positive", classes[0])
    assert ran.code == 0, ran.err
    assert f"positive class {classes[0]}" in ran.err
    assert values() == before[::-1]
    assert f"the positive class is {classes[0]}" in metrics(out)["definitions"]
    assert pfl(*words).code == 0
    assert values() == before[::-1]
    ran = pfl(*words, "--positive", "nowhere")
    assert (ran.code, "unknown class 'nowhere' for --positive" in ran.err) == (2, True)
    tuned = pfl(*words[:3], tmp_path / "t", *words[4:], *metric, "--positive", classes[0], "--tune", 2)
    assert (tuned.code, "leave out --positive" in tuned.err, (tmp_path / "t").exists()) == (2, True, False)
    (line,) = lineage.list_commands(lineage.trace(open_artifact(out / "comparison")))[-1:]
    assert f"--positive {classes[0]}" in line or f"--positive '{classes[0]}'" in line
