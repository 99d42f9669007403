"""``pfl compare`` adds the references constant, pooled and local, and does not fail if they fail."""

from __future__ import annotations

import json

import pytest

from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.core.execution import Execution
from pflcli.core.reporter import NullReporter
from pflcli.core.settings import Settings
from pflcli.workflow.comparison.variants import leave_out_unsuited

FEW = {"model": "logistic", "rounds": 1, "threads": 1}
LINE = ("--references", "--model", "logistic", "--rounds", 1, "--threads", 1)


def read_reference_flags(out):
    """The rows of a table: whether each one is a reference, by name."""
    table = json.loads((out / "comparison" / "metrics.json").read_text())
    return {row["label"]: bool(row.get("reference")) for row in table["methods"]}


@pytest.fixture
def comparison_with_references(small, tmp_path):
    """A comparison of FedAvg with the references."""
    compare(small.p, tmp_path / "c", methods="fedavg", **FEW)
    return tmp_path / "c"


def test_comparison_has_references_below_the_methods_and_is_reused(small, comparison_with_references):
    assert next(iter(read_reference_flags(comparison_with_references))) == "fedavg"
    assert read_reference_flags(comparison_with_references) == {
        "fedavg": False,
        "constant": True,
        "pooled": True,
        "local": True,
    }
    recorded = open_artifact(comparison_with_references / "comparison").manifest
    assert [name for name, facts in recorded.request["methods"].items() if facts.get("reference")] == ["local"]
    assert "fedavg" in recorded.made["command"]
    assert "local" not in " ".join(recorded.made["command"])
    assert compare(small.p, comparison_with_references, methods="fedavg", **FEW).decision == "up to date"
    assert (
        compare(small.p, comparison_with_references, methods="fedavg", references=False, **FEW).decision == "up to date"
    )


def test_local_becomes_a_ranked_method_once_it_is_named(small, comparison_with_references, tree):
    before = tree(comparison_with_references / "seed-0")
    outcome = compare(small.p, comparison_with_references, methods="fedavg,local", **FEW)
    assert outcome.decision == "replace"
    assert read_reference_flags(comparison_with_references) == {
        "fedavg": False,
        "local": False,
        "constant": True,
        "pooled": True,
    }
    assert {path: content for path, (content, _) in tree(comparison_with_references / "seed-0").items()} == {
        path: content for path, (content, _) in before.items()
    }
    assert compare(small.p, comparison_with_references, methods="fedavg", **FEW).decision == "up to date"
    assert read_reference_flags(comparison_with_references)["local"] is False


def test_references_are_added_to_a_comparison_without_them(small, tmp_path):
    out = tmp_path / "c"
    options = {"local": {"epochs": 2}}
    compare(small.p, out, methods="fedavg,local", options=options, references=False, **FEW)
    assert compare(small.p, out, methods="fedavg,local", options=options, **FEW).decision == "replace"
    assert read_reference_flags(out) == {"fedavg": False, "local": False, "constant": True, "pooled": True}
    forced = compare(small.p, out, methods="fedavg", force=True, **FEW)
    assert forced.request["methods"]["local"]["options"]["epochs"] == 2  # force applies to methods that are named


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("--upload", "int8"), "pooled is left out: --upload int8 does not apply"),
        (("--aggregator", "median"), "pooled is left out: --aggregator median does not apply"),
        (("--dp-noise", 1, "--dp-delta", 0.1), "pooled is left out: differential privacy does not cover pooled"),
    ],
)
def test_reference_that_does_not_suit_the_settings_is_left_out(pfl, small, tmp_path, settings, reason):
    ran = pfl("compare", small.p, "-o", tmp_path / "c", *LINE, "--methods", "fedavg", *settings)
    assert (ran.code, reason in ran.err) == (0, True), ran.err
    assert read_reference_flags(tmp_path / "c") == {"fedavg": False, "constant": True, "local": True}


def test_comparison_without_an_unsuited_reference_is_up_to_date(small, tmp_path):
    lines = [compare(small.p, tmp_path / "c", methods="fedavg", upload=["int8"], **FEW).decision for _ in range(2)]
    assert lines == ["new", "up to date"]


def test_variant_of_local_replaces_the_local_reference(small, tmp_path):
    dry = Execution(dry_run=True)
    options = {"local": {"epochs": 2}}
    planned = compare(small.p, tmp_path / "c", methods="fedavg,local@two", options=options, execution=dry, **{**FEW})
    steps = [row["step"] for row in planned.summary["plan"]]
    assert [step for step in steps if step.startswith("local")] == ["local@two"]


def test_references_are_planned_and_can_be_made_by_only(pfl, small, tmp_path):
    line = ("compare", small.p, "-o", tmp_path / "c", *LINE, "--methods", "fedavg")
    script = pfl(*line, "--plan", "sh").out
    assert all(f"seed-0/{name}" in script for name in ("fedavg", "constant", "pooled", "local"))
    ran = pfl(*line, "--only", "seed-0/pooled")
    assert (ran.code, ran.out) == (0, f"{tmp_path}/c/seed-0/pooled\n")


def test_references_are_not_tuned(small, tmp_path):
    dry = Execution(dry_run=True)
    planned = compare(small.p, tmp_path / "c", methods="fedavg,ditto", tune=2, execution=dry, model="mlp", rounds=1)
    steps = [row["step"] for row in planned.summary["plan"]]
    assert {step for step in steps if step.startswith("tune ")} == {"tune fedavg", "tune ditto"}
    assert {"constant", "pooled", "local"} <= {*steps}


def test_references_without_a_network_are_added_if_they_are_cheap_beside_local(small, pfl, tmp_path):
    ran = pfl("compare", small.p, "-o", tmp_path / "c", *LINE, "--methods", "fedavg", "-n")
    (line,) = (line for line in ran.err.splitlines() if "alone is left out" in line)
    assert "more than 10 times as long as local (0.0 s); to compare it, type --methods fedavg,alone" in line
    partition, names = open_artifact(small.p), ("constant", "alone", "alone-pooled")
    for rounds, expected in ((10, ["constant"]), (10**6, [*names])):
        settings = Settings(model="mlp", rounds=rounds, participation=1.0)
        leave_out = leave_out_unsuited(["fedavg"], names, {}, settings, partition, NullReporter())
        assert leave_out[0] == ["fedavg", *expected]


def test_a_reference_that_was_left_out_can_be_named_and_pooled(pfl, small, tmp_path):
    line = ("compare", small.p, "-o", tmp_path / "c", *LINE, "--methods", "fedavg,alone,stack")
    assert pfl(*line, "--set", "stack.pool=fedavg,alone").code == 0
    assert read_reference_flags(tmp_path / "c")["alone"] is True
    stack = open_artifact(tmp_path / "c" / "seed-0" / "stack")
    assert "alone" in " ".join(stack.manifest.summary["exponents"])


def test_stack_does_not_pool_the_references(small, tmp_path):
    dry = Execution(dry_run=True)
    outcome = compare(small.p, tmp_path / "c", methods="fedavg,fedprox,stack", execution=dry, **FEW)
    assert outcome.request["methods"]["stack"]["options"]["pool"] == ["fedavg", "fedprox"]


def test_comparison_fails_when_only_its_references_succeed(pfl, small, tmp_path, monkeypatch):
    from pflcli.core.errors import InputError
    from pflcli.methods import ditto

    def refuse(run):
        raise InputError("the samples are odd")

    monkeypatch.setattr(ditto, "setup", refuse)
    ran = pfl("compare", small.p, "-o", tmp_path / "c", *LINE, "--methods", "ditto", "--baseline", "ditto")
    assert ran.code == 3
    assert "the samples are odd" in ran.err
    assert not (tmp_path / "c" / "comparison").exists()
