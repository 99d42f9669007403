"""Verdicts on claims, from evaluations whose differences and intervals are computed by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import t as student

from pflcli.evaluation.metrics import gains
from pflcli.plugins.claims import judge as judging
from pflcli.plugins.claims.claims_file import Claim
from pflcli.plugins.claims.comparisons import Cell
from pflcli.plugins.claims.judge import Runs, combine, judge, settle
from pflcli.plugins.claims.presentation import build_table, describe_difference


class HandMade(Runs):
    """Runs whose metrics are given, by method and metric a value per seed."""

    def value(self, metric, item):
        return item.values[metric]


def run(accuracies, new=None, **values):
    """A run of ten samples a client with these accuracies (m,), and other metrics."""
    scores = np.asarray(accuracies, float)
    late = None if new is None else np.asarray(new)
    return SimpleNamespace(
        client={"accuracy": scores},
        n=np.full(len(scores), 10),
        new=late,
        artifact=None,
        samples=None,
        is_reference=False,
        repeats_baseline=False,
        values=values,
    )


def runs(failed=(), **methods):
    """Runs by method: a list with a run per seed, or with None for a seed that is missing."""
    scored = {
        name.replace("_", "-"): {
            seed: SimpleNamespace(**{**vars(item), "seed": seed}) for seed, item in enumerate(items) if item is not None
        }
        for name, items in methods.items()
    }
    return HandMade(scored, {name: [0] for name in failed})


@pytest.fixture(autouse=True)
def clients_are_numbered(monkeypatch):
    def identify(items):
        return {item.seed: np.asarray([f"c{number}" for number in range(12)])[:SIZE] for item in items}

    monkeypatch.setattr(judging.summary, "identify_clients", identify)


SIZE = 10


def claim(direction="higher", against=("b",), **more):
    return Claim(says="a is better", on=("x",), direction=direction, method="a", against=against, **more)


def verdict(stated, found, pairs=None):
    cell = Cell("x", "x", {}, stated.pairs if pairs is None else pairs)
    return judge(stated, [cell], {"x": found})


LEAD = np.linspace(0.08, 0.12, SIZE)
"""Gains of ten clients, 0.1 on average, with a small spread."""
BASE = np.full(SIZE, 0.5)


def seeds(scores, count=3, **values):
    return [run(scores, **values) for _ in range(count)]


def test_a_clear_lead_confirms_the_claim_and_contradicts_its_opposite():
    found = runs(a=seeds(BASE + LEAD), b=seeds(BASE))
    assert verdict(claim("higher"), found)["verdict"] == "confirmed"
    assert verdict(claim("lower"), found)["verdict"] == "not confirmed"
    assert verdict(claim("not-lower"), found)["verdict"] == "confirmed"
    assert verdict(claim("not-higher"), found)["verdict"] == "not confirmed"
    swapped = runs(a=seeds(BASE), b=seeds(BASE + LEAD))
    assert verdict(claim("lower"), swapped)["verdict"] == "confirmed"


def test_the_interval_of_a_verdict_is_that_of_a_gain():
    found = runs(a=seeds(BASE + LEAD), b=seeds(BASE))
    decided = verdict(claim(), found)["decided_by"]
    expected = gains.mean_gain([LEAD] * 3, [np.full(SIZE, 10.0)] * 3, [np.arange(SIZE)] * 3)
    assert decided["difference"] == pytest.approx(0.1)
    assert decided["interval"] == pytest.approx(list(expected.interval))
    assert decided["seeds"] == [0, 1, 2]


def test_methods_share_their_variance_between_seeds_as_in_the_table_of_a_comparison():
    draw = np.random.default_rng(0)
    lead = LEAD - 0.02
    levels = {name: [run(BASE + draw.normal(0, 0.03)) for _ in range(3)] for name in "bcde"}
    # The lead over b varies by chance far less than the methods do.
    levels["a"] = [run(item.client["accuracy"] + lead) for item in levels["b"]]
    shared = verdict(claim(), runs(**levels))["decided_by"]["interval"]
    alone = verdict(claim(), runs(a=levels["a"], b=levels["b"]))["decided_by"]["interval"]
    means = {name: [item.client["accuracy"].mean() for item in items] for name, items in levels.items()}
    variance = gains.share_variance(means).of_difference("a", "b")
    names = [np.arange(SIZE)] * 3
    by_hand = gains.mean_gain([lead] * 3, [np.ones(SIZE)] * 3, names, variance)
    assert shared == pytest.approx(by_hand.interval)
    assert shared[1] - shared[0] > 1.5 * (alone[1] - alone[0])


def test_a_method_that_misses_a_seed_shares_no_variance():
    levels = {name: seeds(BASE + place / 100) for place, name in enumerate("bcde")}
    levels["a"] = [*seeds(BASE + LEAD, 2), None]
    found = runs(**levels)
    assert found.seed_variance(("b", "c"), "accuracy", "all") == pytest.approx(0)
    assert found.seed_variance(("a", "b"), "accuracy", "all") is None


def test_a_margin_above_the_lead_is_not_reached():
    found = runs(a=seeds(BASE + LEAD), b=seeds(BASE))
    assert verdict(claim(margin=0.05), found)["verdict"] == "confirmed"
    assert verdict(claim(margin=0.1), found)["verdict"] == "undecided"
    assert verdict(claim(margin=0.2), found)["verdict"] == "not confirmed"
    assert verdict(claim("level", margin=0.2), found)["verdict"] == "confirmed"
    assert verdict(claim("level", margin=0.05), found)["verdict"] == "not confirmed"
    assert verdict(claim("not-higher", margin=0.2), found)["verdict"] == "confirmed"


def test_clients_that_disagree_leave_the_claim_undecided():
    mixed = BASE + np.tile([0.2, -0.19], SIZE // 2)
    for direction in ("higher", "lower", "not-lower", "not-higher"):
        assert verdict(claim(direction), runs(a=seeds(mixed), b=seeds(BASE)))["verdict"] == "undecided"
    assert verdict(claim("level", margin=0.01), runs(a=seeds(mixed), b=seeds(BASE)))["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("margin", "metric", "found"),
    [
        (0.0, "accuracy", ("undecided", "undecided")),  # by less than a test sample shows
        (0.05, "accuracy", ("not confirmed", "confirmed")),
        (0.0, "megabytes", ("not confirmed", "confirmed")),  # a cost has no error
    ],
    ids=["no margin", "a margin", "a cost"],
)
def test_a_tie_is_not_higher_and_not_lower(margin, metric, found):
    equal = runs(a=seeds(BASE, megabytes=3.0), b=seeds(BASE, megabytes=3.0))
    stated = {
        name: claim(name, margin=margin, metric=metric) for name in ("higher", "lower", "not-lower", "not-higher")
    }
    by_direction = {name: verdict(each, equal)["verdict"] for name, each in stated.items()}
    higher, not_lower = found
    assert by_direction == {"higher": higher, "lower": higher, "not-lower": not_lower, "not-higher": not_lower}


@pytest.mark.parametrize("lost", ["a", "b"])
def test_missing_seeds_leave_the_claim_undecided(lost):
    sides = {"a": seeds(BASE + LEAD), "b": seeds(BASE)}
    sides[lost][1] = None
    found = verdict(claim(), runs(**sides))
    assert found["verdict"] == "undecided"
    assert found["decided_by"]["reason"] == "2 of 3 seeds"
    assert found["decided_by"]["seeds"] == [0, 2]
    assert verdict(claim(seeds=2), runs(**sides))["verdict"] == "confirmed"


def test_a_method_without_runs_leaves_the_claim_undecided_with_the_reason():
    failed = verdict(claim(), runs(a=seeds(BASE), failed=["b"]))
    assert (failed["verdict"], failed["decided_by"]["reason"]) == ("undecided", "b failed with seed 0")
    left_out = verdict(claim(), runs(a=seeds(BASE)))
    assert left_out["verdict"] == "undecided"
    assert "does not suit" in left_out["decided_by"]["reason"]
    never = verdict(claim(), runs(a=[run(BASE), None, None], b=[None, run(BASE), run(BASE)]))
    assert (never["verdict"], never["decided_by"]["difference"]) == ("undecided", None)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_single_failed_run_leaves_the_claim_undecided_whatever_the_others_show(lost):
    sides = {"a": [*seeds(BASE + LEAD, 4)], "b": seeds(BASE, 4)}
    assert verdict(claim(), runs(**sides))["verdict"] == "confirmed"
    sides[lost][0] = None
    for direction in ("higher", "lower"):
        found = verdict(claim(direction), runs(failed=[lost], **sides))
        assert found["verdict"] == "undecided"
        assert found["decided_by"]["reason"] == f"{lost} failed with seed 0"
        assert found["decided_by"]["difference"] == pytest.approx(0.1)


def test_a_claim_about_several_methods_has_to_hold_for_each():
    found = runs(a=seeds(BASE + LEAD), b=seeds(BASE), c=seeds(BASE + 2 * LEAD))
    both = verdict(claim(against=("b", "c")), found)
    assert both["verdict"] == "not confirmed"
    assert both["decided_by"]["against"] == "c"
    assert [item["holds"] for item in both["cells"][0]["differences"]] == [True, False]


def test_a_contradiction_is_corrected_for_the_number_of_methods_and_a_confirmation_is_not():
    # A difference whose interval at 95 % just excludes 0: with ten methods, one such is to be expected.
    shape = np.linspace(-1, 1, SIZE)
    estimate = gains.mean_gain([shape] * 3, [np.full(SIZE, 10.0)] * 3, [np.arange(SIZE)] * 3)
    behind = BASE + 0.1 * shape - 0.1 * 1.1 * estimate.interval[1]
    others = {f"b{number}": seeds(BASE) for number in range(10)}
    found = runs(a=seeds(behind), **others)
    assert verdict(claim(against=("b0",)), found)["verdict"] == "not confirmed"
    assert verdict(claim(against=tuple(others)), found)["verdict"] == "undecided"
    assert verdict(claim("lower", against=tuple(others)), found)["verdict"] == "confirmed"


@pytest.mark.parametrize(("ahead", "found"), [(0.1, "undecided"), (0.3, "confirmed")])
def test_the_same_score_in_every_seed_has_the_error_of_one_test_sample(ahead, found):
    """A decile of six clients that three seeds leave as it is: not a difference that is known without an error."""
    decile = verdict(
        claim(metric="bottom_decile"),
        runs(a=seeds(BASE + LEAD, bottom_decile=0.4 + ahead), b=seeds(BASE, bottom_decile=0.4)),
    )
    reach = student.ppf(0.975, 2) * 0.1 / 3**0.5
    assert decile["decided_by"]["interval"] == pytest.approx([ahead - reach, ahead + reach])
    assert (decile["verdict"], decile["decided_by"]["floor"]) == (found, 0.1)
    assert "(ties: the error is that of one test sample)" in describe_difference(decile["decided_by"])


def test_equal_accuracies_of_all_clients_have_the_error_of_one_of_all_test_samples():
    level = verdict(claim("level", margin=0.02), runs(a=seeds(BASE), b=seeds(BASE)))
    reach = student.ppf(0.975, 2) * 0.01 / 3**0.5
    assert level["decided_by"]["interval"] == pytest.approx([-reach, reach])
    assert level["verdict"] == "undecided"  # the interval is longer than the margin


def test_the_same_cost_in_every_seed_has_no_error():
    found = runs(a=seeds(BASE, megabytes=20.0), b=seeds(BASE, megabytes=10.0))
    sent = verdict(claim(metric="megabytes"), found)
    assert (sent["verdict"], sent["decided_by"]["interval"]) == ("confirmed", [10, 10])
    assert "ties" not in describe_difference(sent["decided_by"])


@pytest.mark.parametrize("shift", [-3, -1.1, -0.5, 0.5, 1.1, 3])
@pytest.mark.parametrize("direction", ["higher", "lower", "level", "not-lower", "not-higher"])
def test_the_interval_beside_a_verdict_is_the_one_that_decided_it(direction, shift):
    shape = np.linspace(-1, 1, SIZE)
    estimate = gains.mean_gain([shape] * 3, [np.full(SIZE, 10.0)] * 3, [np.arange(SIZE)] * 3)
    moved = BASE + 0.1 * shape + 0.1 * shift * estimate.interval[1]
    others = {f"b{number}": seeds(BASE) for number in range(10)}
    stated = claim(direction, against=tuple(others), margin=0.001)
    for item in verdict(stated, runs(a=seeds(moved), **others))["cells"][0]["differences"]:
        assert item["holds"] is settle(item["interval"], direction, 0.001)
        assert item["level"] == pytest.approx(0.95 if item["holds"] else 0.995)
        words = describe_difference(item)
        assert ("99.5 % interval" in words) is (item["holds"] is not True)


def test_other_metrics_are_compared_by_seed():
    costs = [{"megabytes": 10.0}, {"megabytes": 12.0}, {"megabytes": 14.0}]
    found = runs(a=[run(BASE, **cost) for cost in costs], b=seeds(BASE, megabytes=20.0))
    decided = verdict(claim("lower", metric="megabytes"), found)["decided_by"]
    # Differences -10, -8, -6: mean -8, standard error 2 / sqrt(3), Student's t with two degrees of freedom 4.3027.
    reach = 4.302653 * 2 / np.sqrt(3)
    assert decided["difference"] == pytest.approx(-8)
    assert decided["interval"] == pytest.approx([-8 - reach, -8 + reach])
    assert decided["holds"] is True
    single = verdict(
        claim("lower", metric="megabytes", seeds=1), runs(a=[found.scored["a"][0]], b=[found.scored["b"][0]])
    )
    assert single["verdict"] == "undecided"


def test_a_value_is_a_threshold():
    found = runs(a=[run(BASE, accuracy=value) for value in (0.80, 0.81, 0.82)])
    above = Claim(says="", on=("x",), direction="higher", method="a", value=0.7)
    assert verdict(above, found)["verdict"] == "confirmed"
    assert verdict(above, found)["decided_by"]["difference"] == pytest.approx(0.11)
    assert (
        verdict(Claim(says="", on=("x",), direction="higher", method="a", value=0.9), found)["verdict"]
        == "not confirmed"
    )


def test_unseen_clients_are_compared_alone():
    new = np.arange(SIZE) < SIZE // 2
    gain = np.where(new, LEAD, -LEAD)
    found = runs(a=[run(BASE + gain, new=new)] * 3, b=[run(BASE, new=new)] * 3)
    assert verdict(claim(metric="accuracy_unseen"), found)["verdict"] == "confirmed"
    assert verdict(claim("lower", metric="accuracy_seen"), found)["verdict"] == "confirmed"
    assert verdict(claim(), found)["verdict"] == "undecided"


def test_an_order_compares_neighbours():
    found = runs(a=seeds(BASE + 2 * LEAD), b=seeds(BASE + LEAD), c=seeds(BASE))
    ordered = Claim(says="", on=("x",), direction="higher", order=("a", "b", "c"))
    assert ordered.pairs == [("a", "b"), ("b", "c")]
    assert verdict(ordered, found)["verdict"] == "confirmed"
    assert (
        verdict(Claim(says="", on=("x",), direction="higher", order=("b", "a", "c")), found)["verdict"]
        == "not confirmed"
    )


def test_the_verdict_over_settings_says_in_how_many_it_holds():
    ahead, behind = runs(a=seeds(BASE + LEAD), b=seeds(BASE)), runs(a=seeds(BASE - LEAD), b=seeds(BASE))
    cells = [Cell(name, name, {}, claim().pairs) for name in ("x", "y", "z")]
    found = judge(claim(), cells, {"x": ahead, "y": behind, "z": ahead})
    assert (found["verdict"], found["holds"], found["settings"]) == ("in part", 2, 3)
    assert found["decided_by"]["experiment"] == "y"
    cells = [{**cell, "size": {}, "paper": {}} for cell in found["cells"]]
    stated = {"says": "", "where": "", "direction": "higher", "margin": 0.0}
    table = build_table({"ahead": {**stated, **found, "cells": cells}})
    assert table.rows[0][table.heading.index("holds in")] == "2 of 3 settings: x; z"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["confirmed", "confirmed"], "confirmed"),
        (["not confirmed"], "not confirmed"),
        (["confirmed", "not confirmed"], "in part"),
        (["confirmed", "undecided", "not confirmed"], "in part"),
        (["confirmed", "undecided"], "undecided"),
        (["not confirmed", "undecided"], "undecided"),
    ],
)
def test_verdicts_of_settings_combine(verdicts, expected):
    assert combine(verdicts) == expected


def test_directions_mirror_each_other():
    for low, high in ((0.1, 0.3), (-0.1, 0.3), (-0.3, -0.1), (0.0, 0.0), (0.0, 0.2), (-0.2, 0.0)):
        for margin in (0.0, 0.1, 0.2):
            assert settle((low, high), "higher", margin) == settle((-high, -low), "lower", margin)
            assert settle((low, high), "not-lower", margin) == settle((-high, -low), "not-higher", margin)
            higher, not_higher = settle((low, high), "higher", margin), settle((low, high), "not-higher", margin)
            assert higher is None or not_higher is (not higher)


def test_the_pair_that_decides_is_the_one_that_speaks_least_for_the_claim():
    found = runs(a=seeds(BASE + 3 * LEAD), b=seeds(BASE + 2 * LEAD), c=seeds(BASE))
    both = claim(against=("c", "b"))
    assert verdict(both, found)["verdict"] == "confirmed"
    assert verdict(both, found)["decided_by"]["against"] == "b"
    lower = claim("lower", against=("c", "b"))
    assert verdict(lower, found)["verdict"] == "not confirmed"
    assert verdict(lower, found)["decided_by"]["against"] == "c"


def test_the_setting_that_decides_is_the_one_that_speaks_least_for_the_claim():
    close, far = (runs(a=seeds(BASE + factor * LEAD), b=seeds(BASE)) for factor in (1, 3))
    cells = [Cell(name, name, {}, claim().pairs) for name in ("far", "close")]
    judged = judge(claim(), cells, {"far": far, "close": close})
    assert judged["verdict"] == "confirmed"
    assert judged["decided_by"]["difference"] == pytest.approx(LEAD.mean())
