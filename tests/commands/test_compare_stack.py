"""``compare --methods ...,stack``: the last step of each seed, an ordinary stack of the other methods' predictions."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from helpers import CLASSIFYING
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.commands.stack import stack
from pflcli.core import registry, scores
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.reporter import SILENT
from pflcli.core.settings import Settings
from pflcli.methods import local
from pflcli.methods.parts import logarithmic_pool as pool
from pflcli.workflow.comparison.request import IncompleteError
from pflcli.workflow.comparison.variants import resolve_variants

FEW = {"model": "mlp", "rounds": 2, "participation": 0.5}
WORDS = ("--model", "mlp", "--rounds", 2, "--participation", 0.5)
METHODS = ["fedavg", "local", "fedavg-plus"]
FORCE = Execution(force=True)
DRY = Execution(dry_run=True)


class Lines(type(SILENT)):
    """Keeps the lines that are said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def run(out, methods, seeds=(0, 1), **kwargs):
    return compare([out.parent / "p"], out, methods=methods, seeds=seeds, settings=FEW, references=False, **kwargs)


def metrics(out):
    return read(open_artifact(out / "comparison"))


def stack_options(out, name="stack"):
    return open_artifact(out / "comparison").manifest.request["methods"][name]["options"]


@pytest.fixture(scope="module")
def stacked_comparison(small, tmp_path_factory):
    """Three methods and a stack of them under two seeds beside their partition; only to be read."""
    out = tmp_path_factory.mktemp("stacked") / "c"
    shutil.copytree(small.p, out.parent / "p")
    run(out, [*METHODS, "stack"])
    return out


@pytest.fixture
def comparison_copy(stacked_comparison, tmp_path):
    """A copy of it that a test may change."""
    shutil.copytree(stacked_comparison.parent, tmp_path / "copy")
    return tmp_path / "copy" / "c"


def test_stack_of_a_comparison_equals_the_one_of_pfl_stack(stacked_comparison, tmp_path):
    stack([stacked_comparison / "seed-1" / name for name in METHODS], tmp_path / "st")
    one, two = (open_artifact(path) for path in (stacked_comparison / "seed-1" / "stack", tmp_path / "st"))
    assert one.manifest.fingerprint == two.manifest.fingerprint
    assert one.read("predictions.h5") == two.read("predictions.h5")


def test_stack_is_scored_like_a_method(stacked_comparison):
    result = metrics(stacked_comparison)
    rows = {row["label"]: row for row in result["methods"]}
    assert {*rows} == {*METHODS, "stack"}
    assert rows["stack"]["seeds"] == [0, 1]
    assert len(rows["stack"]["metrics"]["gain"]["interval"]) == 2
    assert {"by_chance", "by_chance_high", "exceeds_chance"} < rows["stack"]["metrics"]["worse_off"].keys()
    assert len(result["conclusion"]["judged"]) == 3
    text = (stacked_comparison / "comparison" / "clients.csv").read_text()
    assert sum(line.startswith("stack,") for line in text.splitlines()) == 12
    assert stack_options(stacked_comparison) == {"pool": sorted(METHODS), "gate": True, "own": False}


def test_table_reports_the_best_single_method_and_the_upper_bound_of_a_stack(stacked_comparison):
    """Both worked out from the stored predictions."""
    right, offsets, validation = {}, {}, {}
    for seed in (0, 1):
        for name in METHODS:
            artifact = open_artifact(stacked_comparison / f"seed-{seed}" / name)
            test, held_out = (predictions.read(artifact, split) for split in ("test", "validation"))
            right[name, seed], offsets[seed] = scores.correct(test.parts["p"], test.y), test.offsets
            validation[name, seed] = scores.correct(held_out.parts["p"], held_out.y).mean()
    beside = metrics(stacked_comparison)["stacks"]["stack"]
    assert beside["pool"] == sorted(METHODS)
    best = {seed: max(sorted(METHODS), key=lambda name: validation[name, seed]) for seed in (0, 1)}
    assert beside["best_by_validation"] == {str(seed): name for seed, name in best.items()}
    single = [right[best[seed], seed].mean() for seed in (0, 1)]
    assert beside["single"]["accuracy"]["value"] == pytest.approx(np.mean(single))
    assert beside["single"]["accuracy"]["std_over_seeds"] == pytest.approx(np.std(single, ddof=1))
    table = {
        seed: np.max([scores.per_client(right[name, seed], offsets[seed]) for name in METHODS], axis=0)
        for seed in (0, 1)
    }
    bound = [np.average(table[seed], weights=np.diff(offsets[seed])) for seed in (0, 1)]
    assert beside["bound"]["accuracy"]["value"] == pytest.approx(np.mean(bound))
    assert beside["bound"]["bottom_decile"]["value"] == pytest.approx(np.mean([table[seed].min() for seed in (0, 1)]))
    accuracy = {row["label"]: row["metrics"]["accuracy"]["value"] for row in metrics(stacked_comparison)["methods"]}
    assert beside["bound"]["accuracy"]["value"] >= max(accuracy[name] for name in METHODS)
    (line,) = (
        line
        for line in (stacked_comparison / "comparison" / "table.md").read_text().splitlines()
        if "upper bound" in line
    )
    assert line.startswith(f"`stack` pools fedavg, fedavg-plus, local: accuracy {100 * accuracy['stack']:.1f} %")
    assert f"{100 * np.mean(single):.1f} %" in line
    assert f"{100 * np.mean(bound):.1f} %" in line


def test_table_reports_the_upper_bound_of_a_stack_for_another_metric(comparison_copy, forbid_training):
    run(comparison_copy, ["stack"], metrics=["log_loss"])
    beside = metrics(comparison_copy)["stacks"]["stack"]
    assert {*beside["bound"]} == {"log_loss", "log_loss_bottom_decile"}
    least = min(
        row["metrics"]["log_loss"]["value"] for row in metrics(comparison_copy)["methods"] if row["label"] != "stack"
    )
    assert beside["bound"]["log_loss"]["value"] <= least
    assert "log-loss" in next(
        line for line in (comparison_copy / "comparison" / "table.md").read_text().splitlines() if "bound" in line
    )


def test_table_warns_when_a_stack_has_few_validation_samples(stacked_comparison):
    (line,) = (line for line in metrics(stacked_comparison)["warnings"] if line.startswith("stack: "))
    samples = open_artifact(stacked_comparison / "seed-0" / "stack").manifest.summary["validation_samples"]
    assert f"{samples} validation samples of 6 clients" in line


def test_stack_is_the_last_step_of_each_seed(small, tmp_path, pfl):
    line = ("compare", small.p, "-o", tmp_path / "c", *WORDS, "--methods", "stack,fedavg,stack@own,local")
    ran = pfl(*line, "--seeds", "0,1", "--set", "stack@own.own=true", "--set", "stack@own.pool=local,fedavg", "-n")
    assert ran.code == 0, ran.err
    assert ["\t".join(line.split("\t")[:3]) for line in ran.err.splitlines()[-6:]] == [
        "\tseed 0\tseed 1",
        *(f"{name}\tnew\tnew" for name in ("backbone", "fedavg", "local", "stack", "stack@own")),
    ]
    assert "stack pools fedavg, local (2 of 2 methods)" in ran.err


def test_stack_is_not_tuned(small, tmp_path):
    methods = ["fedavg", "local", "stack"]
    outcome = compare([small.p], tmp_path / "c", methods=methods, settings=FEW, tune=2, execution=DRY, references=False)
    steps = {step["step"]: step["decision"] for step in outcome.summary["plan"]}
    assert [*steps] == ["tune fedavg", "tune local", *methods]
    assert steps["stack"] == "after tuning"


def test_stack_of_all_methods_pools_local_and_those_on_the_backbone(small, tmp_path):
    """A pool of all would cost what all of them cost."""
    outcome = compare(
        [small.p], tmp_path / "c", methods=["all", "stack"], settings=FEW, execution=DRY, references=False
    )
    assert [step["step"] for step in outcome.summary["plan"]][-1] == "stack"
    options = outcome.request["methods"]["stack"]["options"]
    cheap = [
        "alone",
        "fedavg",
        "fedavg-plus",
        "gaussian-head",
        "knn-peers",
        "knn-per",
        "knn-per-plus",
        "local",
        "prior",
    ]
    assert options["pool"] == cheap
    every = compare([small.p], tmp_path / "c", settings=FEW, execution=DRY, references=False)
    assert [*every.request["methods"]] == [name for name in CLASSIFYING if not name.endswith("-extended")]


@pytest.mark.parametrize(("count", "pooled"), [(12, 12), (13, 2)])
def test_stack_pools_all_methods_up_to_twelve(count, pooled):
    names = ["fedavg", "local", *(f"ditto@{number}" for number in range(count - 2))]
    # FedAvg is the backbone; the others are trained on the partition.
    variant = resolve_variants([*names, "stack"], {}, Settings())[-1]
    assert variant.options["pool"] == sorted(names if pooled == count else names[:2])
    assert len(variant.options["pool"]) == pooled


def test_stack_pools_alone_of_the_references_and_others_that_are_listed():
    names = ["fedavg", "ditto", "alone", "pooled", "stack"]
    assert resolve_variants(names, {}, Settings())[-1].options["pool"] == ["alone", "ditto", "fedavg"]
    listed = {"stack": {"pool": "pooled,fedavg"}}
    assert resolve_variants(names, listed, Settings())[-1].options["pool"] == ["fedavg", "pooled"]
    without_global_model = resolve_variants(["ditto", "alone", "stack"], {}, Settings())[-1]
    assert without_global_model.options["pool"] == ["alone", "ditto"]  # the gate knows alone


def test_stack_does_not_pool_a_method_trained_on_validation_samples(small, tmp_path):
    options = {"fedavg@refit": {"refit": "true"}}
    methods = ["fedavg", "fedavg@refit", "local", "stack"]
    outcome = compare(
        [small.p], tmp_path / "c", methods=methods, options=options, settings=FEW, execution=DRY, references=False
    )
    assert outcome.request["methods"]["stack"]["options"]["pool"] == ["fedavg", "local"]


def test_stack_can_be_added_to_an_existing_table(comparison_copy, forbid_training, tree):
    shutil.rmtree(comparison_copy / "comparison")
    for seed in (0, 1):
        shutil.rmtree(comparison_copy / f"seed-{seed}" / "stack")
    run(comparison_copy, METHODS)
    before = tree(comparison_copy)
    assert run(comparison_copy, ["stack"]).decision == "replace"
    assert stack_options(comparison_copy)["pool"] == sorted(METHODS)
    after = tree(comparison_copy)
    assert all(after[name] == before[name] for name in before if name.count("/") == 2)
    assert run(comparison_copy, ["stack"]).decision == "up to date"


def test_stack_keeps_its_pool_when_methods_are_added(comparison_copy):
    reporter = Lines()
    run(comparison_copy, [*METHODS, "fedavg-plus@head", "stack"], options={"fedavg-plus@head": {"trainable": "head."}},
        execution=Execution(reporter=reporter))  # fmt: skip
    assert stack_options(comparison_copy)["pool"] == sorted(METHODS)
    more = {"stack": {"pool": "fedavg,local,fedavg-plus@head"}}
    with pytest.raises(ConflictError, match="other options") as error:
        run(comparison_copy, ["stack"], options=more)
    assert error.value.fix[0].startswith("stack: pool: ")
    run(comparison_copy, ["stack"], options=more, execution=FORCE)
    assert stack_options(comparison_copy)["pool"] == ["fedavg", "fedavg-plus@head", "local"]
    inputs = open_artifact(comparison_copy / "seed-1" / "stack").manifest.inputs
    assert sorted(item.path.rsplit("/", 1)[1] for item in inputs) == stack_options(comparison_copy)["pool"]


def test_stack_is_replaced_when_a_pooled_method_changes(comparison_copy, tree):
    before = tree(comparison_copy)
    options = {"local": {"epochs": "1"}}
    plan = {(step["step"], step["seed"]): step["decision"] for step in run(comparison_copy, ["local"], options=options,
            execution=Execution(dry_run=True, force=True)).summary["plan"]}  # fmt: skip
    assert {name for (name, _), decision in plan.items() if decision == "replace"} == {"local", "stack"}
    run(comparison_copy, ["local"], options=options, execution=FORCE)
    after = tree(comparison_copy)
    changed = {name.split("/")[1] for name in before if name.count("/") == 2 and after[name] != before[name]}
    assert changed == {"local", "stack"}


def test_interrupted_stack_is_resumed(comparison_copy, stacked_comparison, monkeypatch, tree, forbid_training):
    shutil.rmtree(comparison_copy / "comparison")
    shutil.rmtree(comparison_copy / "seed-1" / "stack")

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "fit_pool", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(comparison_copy, [*METHODS, "stack"])
    assert not (comparison_copy / "comparison").exists()
    run(comparison_copy, [*METHODS, "stack"])
    file = "seed-1/stack/predictions.h5"
    assert (comparison_copy / file).read_bytes() == (stacked_comparison / file).read_bytes()
    one, two = (
        {row["label"]: row["metrics"]["accuracy"] for row in metrics(at)["methods"]}
        for at in (comparison_copy, stacked_comparison)
    )
    assert one == two


def test_stack_is_skipped_when_a_pooled_method_fails(small, tmp_path, monkeypatch):
    shutil.copytree(small.p, tmp_path / "p")
    monkeypatch.setattr(local, "personalize", lambda run, state, clients: 1 / 0)
    with pytest.raises(IncompleteError) as error:
        run(tmp_path / "c", ["fedavg", "local", "stack"], seeds=(0,))
    assert error.value.fix[:2] == (
        "seed 0, local: a bug: ZeroDivisionError: division by zero",
        "seed 0, stack: not run without it",
    )
    assert "stacks" not in metrics(tmp_path / "c")


def test_best_single_method_skips_seeds_with_a_missing_pooled_method(comparison_copy, monkeypatch):
    """The stack is up to date, and its source, which was deleted, fails."""
    shutil.rmtree(comparison_copy / "comparison")
    shutil.rmtree(comparison_copy / "seed-1" / "local")
    monkeypatch.setattr(local, "personalize", lambda run, state, clients: 1 / 0)
    with pytest.raises(IncompleteError):
        run(comparison_copy, [*METHODS, "stack"])
    assert [*metrics(comparison_copy)["stacks"]["stack"]["best_by_validation"]] == ["0"]
    assert next(row["seeds"] for row in metrics(comparison_copy)["methods"] if row["label"] == "stack") == [0, 1]


def test_stack_of_all_methods_is_left_out_when_too_few_methods_suit_the_data(small, tmp_path, monkeypatch):
    def refuse(run):
        raise InputError("the clusters are not known")

    all_names = registry.names
    monkeypatch.setattr(
        registry, "names", lambda group: ["fedavg", "local"] if group == "methods" else all_names(group)
    )
    monkeypatch.setattr(local, "setup", refuse, raising=False)
    shutil.copytree(small.p, tmp_path / "p")
    reporter = Lines()
    for decision in ("new", "up to date"):
        outcome = run(tmp_path / "c", ["all", "stack"], seeds=(0,), execution=Execution(reporter=reporter))
        assert outcome.decision == decision
        assert reporter.lines.count("stack is left out because local is left out") == 1
        reporter.lines.clear()
    assert [row["label"] for row in metrics(tmp_path / "c")["methods"]] == ["fedavg"]


W = "compare {p} -o {out} --model mlp --rounds 1 "
THREE = W + "--methods fedavg,local,stack "
WRONG = {
    "alone": (W + "--methods stack", 2, "two methods or more to pool, got none", "fedavg,local,stack"),
    "of one": (W + "--methods fedavg,stack", 2, "got only fedavg"),
    "of stacks": (W + "--methods fedavg,stack,stack@b --set stack.pool=fedavg,stack@b", 2, "stack@b, which is a stack"),
    "of another": (THREE + "--set stack.pool=fedavg,lokal", 2, "lokal, which is not compared",
                   "did you mean 'local'?"),
    "an unknown option": (THREE + "--set stack.gates=1", 2, "unknown option 'gates' for stack"),
    "a training setting": (THREE + "--set stack.lr=1", 2, "unknown option 'lr' for stack"),
    "without a global model": (W + "--methods ditto,local,stack", 2, "none of ditto, local stores predictions",
                               "--set stack.gate=false"),
    "with refit": (THREE + "--refit", 2, "fedavg, local already learned", "leave out --refit"),
    "of one with refit": (THREE + "--set local.refit=true --set stack.pool=fedavg,local", 2,
                          "local already learned"),
    "without validation samples": (THREE.replace("{p}", "{unvalidated}"), 3,
                                   "has no validation samples"),
}  # fmt: skip


@pytest.fixture(scope="module")
def paths(small, tmp_path_factory):
    at = tmp_path_factory.mktemp("places")
    partition("writers", at / "unvalidated", clients=2, fractions=(0.8, 0, 0.2))
    return {"p": small.p, "unvalidated": at / "unvalidated", "out": at / "out"}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_pools_are_refused_before_any_training(pfl, paths, forbid_training, case):
    line, code, *words = WRONG[case]
    ran = pfl(*(part.format(**paths) for part in line.split()))
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert len([text for text in ran.err.splitlines() if text.startswith("pfl: ")]) == 1
    for word in words:
        assert word in ran.err
    assert not paths["out"].exists()


def test_stack_gate_can_be_turned_off(small, tmp_path):
    methods, options = ["ditto", "local", "stack"], {"stack": {"gate": "false"}}
    outcome = compare(
        [small.p], tmp_path / "c", methods=methods, options=options, settings=FEW, execution=DRY, references=False
    )
    assert outcome.request["methods"]["stack"]["options"] == {"pool": ["ditto", "local"], "gate": False, "own": False}


def test_compare_in_python_refuses_a_stack_without_two_methods(small, tmp_path):
    with pytest.raises(UsageError, match="needs two methods or more"):
        compare([small.p], tmp_path / "c", methods=["stack"], settings=FEW, references=False)
