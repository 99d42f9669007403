"""Differential privacy on the command line: what is private, refusals, and the record in the manifest."""

from __future__ import annotations

import json
import shutil

import pytest

from pflcli import personalize, train_global
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import UsageError
from pflcli.core.federation.privacy import accounting, guarantee
from pflcli.core.settings import Settings
from pflcli.workflow.comparison.tunings import Budget, Choice, Tuned
from pflcli.workflow.comparison.variants import resolve_variants

FAST = ("--model", "logistic", "--rounds", "3", "--participation", "0.2", "-q")


def test_dp_epsilon_finds_the_noise_and_is_recorded_in_the_manifest(pfl, small, tmp_path):
    private = ("--dp-epsilon", "1", "--dp-delta", "0.01")
    dry = pfl("train-global", small.p, "-o", tmp_path / "b", *FAST[:-1], *private, "-n")
    assert "differential privacy: epsilon" in dry.err
    assert "noise multiplier" in dry.err
    assert pfl("train-global", small.p, "-o", tmp_path / "b", *FAST, *private).code == 0
    manifest = open_artifact(tmp_path / "b").manifest
    facts = manifest.summary["privacy"]
    assert 0.98 < facts["epsilon"] <= 1
    assert facts["delta"] == 0.01
    assert "user level" in facts["unit"]
    assert "added or removed" in facts["adjacency"]
    assert "Poisson" in facts["sampling"]
    assert (facts["rounds"], facts["clip"], facts["accountant"]) == (3, "adaptive", "dp-accounting PLD")
    assert facts["accountant_version"].startswith("0.6")
    share = facts["share_clipped"]
    assert share is None or 0 <= share <= 1  # None if no client was drawn in any round
    assert facts["last_clip"] > 0
    assert any("stores" in line for line in facts["not_covered"])
    assert any("tuning" in line for line in facts["not_covered"])
    # What adapts on a private model has its guarantee, for the model alone.
    line = ("personalize", "fedavg-plus", tmp_path / "b", "-o", tmp_path / "plus", "-q")
    assert pfl(*line).code == 0
    assert open_artifact(tmp_path / "plus").manifest.summary["privacy"] == facts
    noise = ("--dp-noise", str(facts["noise"]), "--dp-delta", "0.01", "--dp-clip", "adaptive")
    assert pfl("personalize", "fedavg", small.p, "-o", tmp_path / "f", *FAST, *noise).code == 0
    again = open_artifact(tmp_path / "f").manifest.summary["privacy"]
    table = pfl("evaluate", tmp_path / "f", tmp_path / "plus", "-o", tmp_path / "e")
    assert "fedavg-plus, fedavg: user-level differential privacy, epsilon" in " ".join(table.err.split())
    assert "does not cover personal models and predictions" in " ".join(table.err.split())
    measured = ("share_clipped", "last_clip")  # which depend on the noise
    assert {k: v for k, v in again.items() if k not in measured} == {
        k: v for k, v in facts.items() if k not in measured
    }


def test_record_guarantee_matches_hand_computed_facts():
    rows = [{"clip": 1.0, "clipped": 3, "uploads": 4}, {"clip": 0.5, "clipped": 1, "uploads": 2}]
    settings = {"rounds": 2, "participation": 0.5, "dp_noise": 2.0, "dp_delta": 1e-3}
    facts = guarantee.record_guarantee(Settings(**settings), 30, rows)
    assert facts["share_clipped"] == 4 / 6
    assert facts["last_clip"] == 0.5
    assert (facts["noise"], facts["delta"], facts["rounds"], facts["clip"]) == (2.0, 1e-3, 2, "adaptive")
    assert facts["epsilon"] == accounting.compute_epsilon(2.0, 0.5, 2, 1e-3)
    assert "each of 30 clients takes part in a round with probability 0.5" in facts["sampling"]
    assert guarantee.record_guarantee(Settings(**settings, dp_clip="0.3"), 30, rows)["clip"] == "0.3"
    empty = guarantee.record_guarantee(Settings(**settings), 30, [{"clip": 1.0, "clipped": 0, "uploads": 0}])
    assert empty["share_clipped"] is None
    without_noise = Settings(**{**settings, "dp_noise": 0.0})
    facts = guarantee.record_guarantee(without_noise, 30, rows)
    assert (facts["epsilon"], facts["accountant"], facts["accountant_version"]) == (None, None, None)
    assert "no privacy is guaranteed" in guarantee.describe_guarantee(facts)


@pytest.mark.parametrize("seed", [None, 0, 3])
def test_guarantee_warns_when_the_noise_follows_from_a_seed(seed):
    settings = Settings(rounds=1, participation=0.5, dp_noise=2.0, dp_delta=1e-3, dp_seed=seed)
    said = []
    facts = guarantee.summarize_guarantee(settings, 30, [], said.append)["privacy"]
    assert ("dp_seed" in facts["random_numbers"]) == (seed is not None)
    assert (guarantee.WARNING_OF_SEED in said[0]) == (seed is not None)


@pytest.mark.parametrize(("clip", "named"), [(None, "adaptive"), ("adaptive", "adaptive"), ("0.3", "0.3")])
@pytest.mark.parametrize(("delta", "is_warned"), [(1e-3, False), (0.1, True), (0.2, True)])
def test_plan_names_the_clip_and_warns_of_a_delta_not_below_one_over_clients(clip, named, delta, is_warned):
    settings = Settings(rounds=3, participation=0.5, dp_noise=2.0, dp_delta=delta, dp_clip=clip)
    plan, *warnings = guarantee.describe_plan(settings, lambda: range(10))
    epsilon = accounting.compute_epsilon(2.0, 0.5, 3, delta)
    assert f"epsilon {epsilon:.2f} at delta {delta:g} with noise multiplier 2 and clip {named}, over 3 rounds" in plan
    assert "each of 10 clients takes part with probability 0.5" in plan
    assert [f"delta {delta:g} is not below 1 / 10" in line for line in warnings] == [True] * is_warned


def test_compose_runs_adds_epsilons_and_deltas():
    private = [Settings(rounds=1, participation=0.5, dp_noise=noise, dp_delta=1e-3) for noise in (1.0, 2.0, 4.0)]
    total = guarantee.compose_runs([private[0], Settings(), *private[1:]])
    epsilons = [accounting.compute_epsilon(noise, 0.5, 1, 1e-3) for noise in (1.0, 2.0, 4.0)]
    assert total["runs"] == 3
    assert total["epsilon"] == pytest.approx(sum(epsilons))
    assert total["delta"] == pytest.approx(3e-3)
    words = guarantee.describe_composition(total)
    assert f"3 private runs on the same clients spend together at most epsilon {sum(epsilons):.2f}" in words
    assert guarantee.compose_runs([private[0], Settings()]) == {}
    without_noise = guarantee.compose_runs([private[0], Settings(dp_noise=0.0, dp_delta=1e-3)])
    assert (without_noise["runs"], without_noise["epsilon"]) == (2, None)
    assert "some of them without noise" in guarantee.describe_composition(without_noise)


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        # fedavg predicts with the backbone, fedavg-plus adapts it, and clients of local send nothing.
        (("--methods", "fedavg,fedavg-plus,local"), 0),
        (("--methods", "fedavg,fedavg-plus,local,fedprox"), 2),
        (("--methods", "fedavg,fedavg-plus,local,fedprox", "--seeds", "0,1"), 4),
        (("--methods", "fedprox,local,fedsgd"), 2),
    ],
)
def test_comparison_counts_every_run_that_sends_private_updates(pfl, small, tmp_path, options, runs):
    private = (
        "--dp-noise",
        "1",
        "--dp-delta",
        "0.01",
        "--model",
        "logistic",
        "--rounds",
        "1",
        "--participation",
        "0.2",
    )
    result = pfl("compare", small.p, "-o", tmp_path / "c", *private, *options, "-n", "-q", "--json")
    assert result.code == 0, result.err
    total = json.loads(result.out)["summary"].get("privacy")
    if not runs:
        assert total is None
        return
    each = accounting.compute_epsilon(1.0, 0.2, 1, 0.01)
    assert (total["runs"], total["delta"]) == (runs, pytest.approx(runs * 0.01))
    assert total["epsilon"] == pytest.approx(runs * each)


def test_comparison_counts_a_private_backbone_that_was_deleted(pfl, small, tmp_path):
    private = ("--dp-noise", 1, "--dp-delta", 0.01, "--model", "mlp", "--rounds", 1, "--participation", 0.2)
    line = ("compare", small.p, "-o", tmp_path / "c", *private, "--methods", "fedavg-plus,fedprox", "--json")
    assert pfl(*line).code == 0
    shutil.rmtree(tmp_path / "c" / "seed-0" / "backbone")
    shutil.rmtree(tmp_path / "c" / "comparison")
    for more in (("-n",), ()):
        result = pfl(*line, *more)
        assert (result.code, json.loads(result.out)["summary"]["privacy"]["runs"]) == (0, 2)
    assert not (tmp_path / "c" / "seed-0" / "backbone").exists()


def test_private_trials_counts_every_trial_that_sends_private_updates(pfl, small, tmp_path):
    training = Settings(rounds=1, dp_noise=1.0, dp_delta=0.01)
    variants = resolve_variants(["fedavg", "fedprox", "fedavg-plus", "local"], {}, training)
    choices = {
        "fedavg": Choice({"training.lr": 0.1}, 2, 4),
        "fedprox": Choice({}, 3, 4, "all trials diverged"),
        "fedavg-plus": Choice({"epochs": 1}, 4, 8),
        "local": Choice({"training.lr": 0.1}, 5, 8),
    }
    options = {"fedprox": {"training.dp_noise": 2.0}}
    trials = Tuned(options, {}, Budget(5, 0, "accuracy"), choices).private_trials(variants, training)
    assert [each.dp_noise for each in trials] == [1.0] * 2 + [2.0] * 3
    assert [each.lr for each in trials] == [0.1] * 2 + [training.lr] * 3
    line = (
        "-o",
        tmp_path / "t",
        "--trials",
        3,
        "--dp-noise",
        1,
        "--dp-delta",
        0.01,
        "--model",
        "logistic",
        "-n",
        "--json",
    )
    for method, runs in (("fedprox", 3), ("local", None), ("fedavg-plus", None)):
        result = pfl("tune", method, small.p, *line)
        assert result.code == 0, result.err
        assert json.loads(result.out)["summary"].get("privacy", {}).get("runs") == runs


def test_run_without_privacy_records_no_guarantee(pfl, small, tmp_path):
    assert pfl("train-global", small.p, "-o", tmp_path / "b", *FAST).code == 0
    manifest = open_artifact(tmp_path / "b").manifest
    assert "privacy" not in manifest.summary
    private = [value for name, value in manifest.request["settings"].items() if name.startswith("dp_")]
    assert private == [None] * 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--dp-epsilon", "1"), "dp_delta"),
        (("--dp-epsilon", "1", "--dp-noise", "1", "--dp-delta", "1e-3"), "each determines the other"),
        (("--dp-clip", "1"), "without dp_epsilon or dp_noise"),
        (("--dp-delta", "1e-3"), "without dp_epsilon or dp_noise"),
        (("--dp-noise", "1", "--dp-delta", "1e-3", "--dp-clip", "inf"), "infinite noise"),
        (("--dp-noise", "1", "--dp-delta", "1e-3", "--dp-clip", "nan"), "neither a number"),
        (("--dp-noise", "1", "--dp-delta", "1e-3", "--dp-clip", "much"), "neither a number"),
        (("--dp-noise", "1", "--dp-delta", "2"), "dp_delta=2"),
    ],
)
def test_contradictory_privacy_options_end_in_one_error(pfl, small, tmp_path, options, words):
    result = pfl("train-global", small.p, "-o", tmp_path / "b", *FAST, *options)
    assert result.code == 2
    assert words in result.err


@pytest.mark.parametrize("method", ["fedham", "panm", "ifca", "feddbe"])
def test_private_run_of_an_uncovered_method_is_refused_in_a_dry_run(pfl, small, tmp_path, method):
    private = ("--dp-noise", "1", "--dp-delta", "1e-3")
    result = pfl("personalize", method, small.p, "-o", tmp_path / "x", *FAST, *private, "-n")
    assert result.code == 3
    assert f"does not cover {method}: its clients send" in result.err


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("epsilon", {"dp_noise": None, "dp_epsilon": 50.0}),
        ("delta", {"dp_delta": 1e-2}),
        ("noise", {"dp_noise": 2.0}),
        ("clip", {"dp_clip": "0.5"}),
        ("seed", {"dp_seed": 1}),
    ],
)
def test_method_on_a_private_backbone_refuses_other_privacy_settings(small, tmp_path, option, changes):
    private = {
        "rounds": 1,
        "participation": 0.2,
        "model": "logistic",
        "dp_noise": 1.0,
        "dp_delta": 1e-3,
        "dp_clip": "1",
    }
    train_global(small.p, tmp_path / "b", settings=private)
    with pytest.raises(UsageError, match=f"trained with another --dp-{option}"):
        personalize("fedavg-plus", tmp_path / "b", tmp_path / "x", settings=changes)


def test_privacy_options_are_refused_on_a_backbone_trained_without_privacy(pfl, small, tmp_path):
    assert pfl("train-global", small.p, "-o", tmp_path / "b", *FAST).code == 0
    private = ("--dp-noise", "1", "--dp-delta", "1e-3")
    result = pfl("personalize", "knn-per", tmp_path / "b", "-o", tmp_path / "x", *private)
    assert result.code in (2, 3)
    result = pfl("personalize", "fedavg-plus", tmp_path / "b", "-o", tmp_path / "x", *private)
    assert result.code == 2
    assert "trained with another --dp-delta" in result.err
