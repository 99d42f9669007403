"""``compare --methods ...,stack``: the last step of each seed, an ordinary stack of the other methods' predictions."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from pflcli import registry
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import IncompleteError, compare
from pflcli.commands.partition import partition
from pflcli.commands.stack import stack
from pflcli.comparison.variants import resolve_variants
from pflcli.errors import ConflictError, InputError, UsageError
from pflcli.evaluation.metrics import scores
from pflcli.execution import Execution
from pflcli.methods import local
from pflcli.methods.parts import logarithmic_pool as pool
from pflcli.reporter import SILENT
from pflcli.settings import Settings

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
def stacked(small, tmp_path_factory):
    """Three methods and a stack of them under two seeds beside their partition; only to be read."""
    out = tmp_path_factory.mktemp("stacked") / "c"
    shutil.copytree(small.p, out.parent / "p")
    run(out, [*METHODS, "stack"])
    return out


@pytest.fixture
def copied(stacked, tmp_path):
    """A copy of it that a test may change."""
    shutil.copytree(stacked.parent, tmp_path / "copy")
    return tmp_path / "copy" / "c"


@pytest.fixture
def untrained(monkeypatch):
    """Fail the test if anything is trained."""

    def refuse(*args):
        raise AssertionError("something is trained")

    monkeypatch.setattr("pflcli.simulation.create_run.Engine", refuse)


def test_it_is_the_stack_that_pfl_stack_makes(stacked, tmp_path):
    stack([stacked / "seed-1" / name for name in METHODS], tmp_path / "st")
    one, two = (open_artifact(path) for path in (stacked / "seed-1" / "stack", tmp_path / "st"))
    assert one.manifest.fingerprint == two.manifest.fingerprint
    assert one.read("predictions.h5") == two.read("predictions.h5")


def test_it_is_scored_like_a_method(stacked):
    result = metrics(stacked)
    rows = {row["label"]: row for row in result["methods"]}
    assert {*rows} == {*METHODS, "stack"}
    assert rows["stack"]["seeds"] == [0, 1]
    assert len(rows["stack"]["metrics"]["gain"]["interval"]) == 2
    assert {"by_chance", "by_chance_high", "exceeds_chance"} < rows["stack"]["metrics"]["worse_off"].keys()
    assert result["conclusion"]["compared"] == 3
    text = (stacked / "comparison" / "clients.csv").read_text()
    assert sum(line.startswith("stack,") for line in text.splitlines()) == 12
    assert stack_options(stacked) == {"pool": sorted(METHODS), "gate": True, "own": False}


def test_the_best_single_method_and_the_bound_stand_beside_it(stacked):
    """Both worked out from the stored predictions."""
    right, offsets, validation = {}, {}, {}
    for seed in (0, 1):
        for name in METHODS:
            artifact = open_artifact(stacked / f"seed-{seed}" / name)
            test, held_out = (predictions.read(artifact, split) for split in ("test", "validation"))
            right[name, seed], offsets[seed] = scores.correct(test.parts["p"], test.y), test.offsets
            validation[name, seed] = scores.correct(held_out.parts["p"], held_out.y).mean()
    beside = metrics(stacked)["stacks"]["stack"]
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
    accuracy = {row["label"]: row["metrics"]["accuracy"]["value"] for row in metrics(stacked)["methods"]}
    assert beside["bound"]["accuracy"]["value"] >= max(accuracy[name] for name in METHODS)
    (line,) = (line for line in (stacked / "comparison" / "table.md").read_text().splitlines() if "upper bound" in line)
    assert line.startswith(f"`stack` pools fedavg, fedavg-plus, local: accuracy {100 * accuracy['stack']:.1f} %")
    assert f"{100 * np.mean(single):.1f} %" in line
    assert f"{100 * np.mean(bound):.1f} %" in line


def test_of_another_metric_they_stand_there_too(copied, untrained):
    run(copied, ["stack"], metrics=["log_loss"])
    beside = metrics(copied)["stacks"]["stack"]
    assert {*beside["bound"]} == {"log_loss", "log_loss_bottom_decile"}
    least = min(row["metrics"]["log_loss"]["value"] for row in metrics(copied)["methods"] if row["label"] != "stack")
    assert beside["bound"]["log_loss"]["value"] <= least
    assert "log-loss" in next(
        line for line in (copied / "comparison" / "table.md").read_text().splitlines() if "bound" in line
    )


def test_the_table_says_that_there_is_too_little_to_learn_from(stacked):
    (line,) = (line for line in metrics(stacked)["warnings"] if line.startswith("stack: "))
    samples = open_artifact(stacked / "seed-0" / "stack").manifest.summary["validation_samples"]
    assert f"{samples} validation samples of 6 clients" in line


def test_it_is_the_last_step_of_each_seed(small, tmp_path, pfl):
    line = ("compare", small.p, "-o", tmp_path / "c", *WORDS, "--methods", "stack,fedavg,stack@own,local")
    ran = pfl(*line, "--seeds", "0,1", "--set", "stack@own.own=true", "--set", "stack@own.pool=local,fedavg", "-n")
    assert ran.code == 0, ran.err
    assert ["\t".join(line.split("\t")[:3]) for line in ran.err.splitlines()[-6:]] == [
        "\tseed 0\tseed 1",
        *(f"{name}\tnew\tnew" for name in ("backbone", "fedavg", "local", "stack", "stack@own")),
    ]
    assert "stack pools fedavg, local (2 of 2 methods)" in ran.err


def test_it_is_not_tuned(small, tmp_path):
    methods = ["fedavg", "local", "stack"]
    outcome = compare([small.p], tmp_path / "c", methods=methods, settings=FEW, tune=2, execution=DRY, references=False)
    steps = {step["step"]: step["decision"] for step in outcome.summary["plan"]}
    assert [*steps] == ["tune fedavg", "tune local", *methods]
    assert steps["stack"] == "after tuning"


def test_of_all_methods_those_on_the_backbone_and_local_are_pooled(small, tmp_path):
    """A pool of all would cost what all of them cost."""
    outcome = compare(
        [small.p], tmp_path / "c", methods=["all", "stack"], settings=FEW, execution=DRY, references=False
    )
    assert [step["step"] for step in outcome.summary["plan"]][-1] == "stack"
    options = outcome.request["methods"]["stack"]["options"]
    cheap = ["fedavg", "fedavg-plus", "gaussian-head", "knn-per", "knn-per-plus", "local", "prior"]
    assert options["pool"] == cheap
    every = compare([small.p], tmp_path / "c", settings=FEW, execution=DRY, references=False)
    assert [*every.request["methods"]] == registry.names("methods")


@pytest.mark.parametrize(("count", "pooled"), [(12, 12), (13, 2)])
def test_up_to_twelve_methods_are_pooled_all(count, pooled):
    names = ["fedavg", "local", *(f"ditto@{number}" for number in range(count - 2))]
    # FedAvg is the backbone; the others are trained on the partition.
    variant = resolve_variants([*names, "stack"], {}, Settings())[-1]
    assert variant.options["pool"] == sorted(names if pooled == count else names[:2])
    assert len(variant.options["pool"]) == pooled


def test_one_that_learned_from_validation_samples_is_not_pooled(small, tmp_path):
    options = {"fedavg@refit": {"refit": "true"}}
    methods = ["fedavg", "fedavg@refit", "local", "stack"]
    outcome = compare(
        [small.p], tmp_path / "c", methods=methods, options=options, settings=FEW, execution=DRY, references=False
    )
    assert outcome.request["methods"]["stack"]["options"]["pool"] == ["fedavg", "local"]


def test_it_joins_a_table(copied, untrained, tree):
    shutil.rmtree(copied / "comparison")
    for seed in (0, 1):
        shutil.rmtree(copied / f"seed-{seed}" / "stack")
    run(copied, METHODS)
    before = tree(copied)
    assert run(copied, ["stack"]).decision == "replace"
    assert stack_options(copied)["pool"] == sorted(METHODS)
    after = tree(copied)
    assert all(after[name] == before[name] for name in before if name.count("/") == 2)
    assert run(copied, ["stack"]).decision == "up to date"


def test_it_keeps_its_pool_until_told_otherwise(copied):
    reporter = Lines()
    run(copied, [*METHODS, "fedavg-plus@head", "stack"], options={"fedavg-plus@head": {"trainable": "head."}},
        execution=Execution(reporter=reporter))  # fmt: skip
    assert stack_options(copied)["pool"] == sorted(METHODS)
    more = {"stack": {"pool": "fedavg,local,fedavg-plus@head"}}
    with pytest.raises(ConflictError, match="other options") as error:
        run(copied, ["stack"], options=more)
    assert error.value.fix[0].startswith("stack: pool: ")
    run(copied, ["stack"], options=more, execution=FORCE)
    assert stack_options(copied)["pool"] == ["fedavg", "fedavg-plus@head", "local"]
    inputs = open_artifact(copied / "seed-1" / "stack").manifest.inputs
    assert sorted(item.path.rsplit("/", 1)[1] for item in inputs) == stack_options(copied)["pool"]


def test_a_source_that_changes_makes_it_stale(copied, tree):
    before = tree(copied)
    options = {"local": {"epochs": "1"}}
    plan = {(step["step"], step["seed"]): step["decision"] for step in run(copied, ["local"], options=options,
            execution=Execution(dry_run=True, force=True)).summary["plan"]}  # fmt: skip
    assert {name for (name, _), decision in plan.items() if decision == "replace"} == {"local", "stack"}
    run(copied, ["local"], options=options, execution=FORCE)
    after = tree(copied)
    changed = {name.split("/")[1] for name in before if name.count("/") == 2 and after[name] != before[name]}
    assert changed == {"local", "stack"}


def test_killed_it_is_resumed(copied, stacked, monkeypatch, tree, untrained):
    shutil.rmtree(copied / "comparison")
    shutil.rmtree(copied / "seed-1" / "stack")

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "fit_pool", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(copied, [*METHODS, "stack"])
    assert not (copied / "comparison").exists()
    run(copied, [*METHODS, "stack"])
    file = "seed-1/stack/predictions.h5"
    assert (copied / file).read_bytes() == (stacked / file).read_bytes()
    one, two = (
        {row["label"]: row["metrics"]["accuracy"] for row in metrics(at)["methods"]} for at in (copied, stacked)
    )
    assert one == two


def test_a_source_that_fails_costs_it(small, tmp_path, monkeypatch):
    shutil.copytree(small.p, tmp_path / "p")
    monkeypatch.setattr(local, "personalize", lambda run, state, clients: 1 / 0)
    with pytest.raises(IncompleteError) as error:
        run(tmp_path / "c", ["fedavg", "local", "stack"], seeds=(0,))
    assert error.value.fix[:2] == (
        "seed 0, local: a bug: ZeroDivisionError: division by zero",
        "seed 0, stack: not run without it",
    )
    assert "stacks" not in metrics(tmp_path / "c")


def test_a_seed_without_a_source_does_not_count_beside_it(copied, monkeypatch):
    """The stack is up to date, and its source, which was deleted, fails."""
    shutil.rmtree(copied / "comparison")
    shutil.rmtree(copied / "seed-1" / "local")
    monkeypatch.setattr(local, "personalize", lambda run, state, clients: 1 / 0)
    with pytest.raises(IncompleteError):
        run(copied, [*METHODS, "stack"])
    assert [*metrics(copied)["stacks"]["stack"]["best_by_validation"]] == ["0"]
    assert next(row["seeds"] for row in metrics(copied)["methods"] if row["label"] == "stack") == [0, 1]


def test_of_all_methods_one_that_does_not_suit_the_data_costs_it(small, tmp_path, monkeypatch):
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
def places(small, tmp_path_factory):
    at = tmp_path_factory.mktemp("places")
    partition("writers", at / "unvalidated", clients=2, fractions=(0.8, 0, 0.2))
    return {"p": small.p, "unvalidated": at / "unvalidated", "out": at / "out"}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_pooled_is_refused_before_anything_is_made(pfl, places, untrained, case):
    line, code, *words = WRONG[case]
    ran = pfl(*(part.format(**places) for part in line.split()))
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert len([text for text in ran.err.splitlines() if text.startswith("pfl: ")]) == 1
    for word in words:
        assert word in ran.err
    assert not places["out"].exists()


def test_a_gate_may_be_left_out(small, tmp_path):
    methods, options = ["ditto", "local", "stack"], {"stack": {"gate": "false"}}
    outcome = compare(
        [small.p], tmp_path / "c", methods=methods, options=options, settings=FEW, execution=DRY, references=False
    )
    assert outcome.request["methods"]["stack"]["options"] == {"pool": ["ditto", "local"], "gate": False, "own": False}


def test_an_unknown_pool_is_a_usage_error_in_python_too(small, tmp_path):
    with pytest.raises(UsageError, match="needs two methods or more"):
        compare([small.p], tmp_path / "c", methods=["stack"], settings=FEW, references=False)
