"""Differential privacy from the command line: what is private for, what is refused, and what the manifest says."""

from __future__ import annotations

import pytest

from pflcli.artifacts.reader import open_artifact

FAST = ("--model", "logistic", "--rounds", "3", "--participation", "0.2", "-q")


def test_epsilon_finds_the_noise_and_the_manifest_says_all(pfl, small, tmp_path):
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
    assert "fedavg, fedavg-plus: user-level differential privacy, epsilon" in " ".join(table.err.split())
    assert "does not cover personal models and predictions" in " ".join(table.err.split())
    measured = ("share_clipped", "last_clip")  # which depend on the noise
    assert {k: v for k, v in again.items() if k not in measured} == {
        k: v for k, v in facts.items() if k not in measured
    }


def test_a_run_without_it_says_nothing_of_it(pfl, small, tmp_path):
    assert pfl("train-global", small.p, "-o", tmp_path / "b", *FAST).code == 0
    manifest = open_artifact(tmp_path / "b").manifest
    assert "privacy" not in manifest.summary
    assert not [name for name in manifest.request["settings"] if name.startswith("dp_")]


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
def test_a_wrong_combination_ends_in_one_error(pfl, small, tmp_path, options, words):
    result = pfl("train-global", small.p, "-o", tmp_path / "b", *FAST, *options)
    assert result.code == 2
    assert words in result.err


@pytest.mark.parametrize("method", ["fedham", "panm", "ifca", "feddbe"])
def test_a_method_that_it_does_not_cover_is_refused_before_it_begins(pfl, small, tmp_path, method):
    private = ("--dp-noise", "1", "--dp-delta", "1e-3")
    result = pfl("personalize", method, small.p, "-o", tmp_path / "x", *FAST, *private, "-n")
    assert result.code == 3
    assert f"does not cover {method}: its clients send" in result.err


def test_a_backbone_without_it_gets_no_guarantee_afterwards(pfl, small, tmp_path):
    assert pfl("train-global", small.p, "-o", tmp_path / "b", *FAST).code == 0
    private = ("--dp-noise", "1", "--dp-delta", "1e-3")
    result = pfl("personalize", "knn-per", tmp_path / "b", "-o", tmp_path / "x", *private)
    assert result.code in (2, 3)
    result = pfl("personalize", "fedavg-plus", tmp_path / "b", "-o", tmp_path / "x", *private)
    assert result.code == 2
    assert "trained with another --dp-delta" in result.err
