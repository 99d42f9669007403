"""The conclusion below a table, and the note on methods whose accuracy was still rising."""

from __future__ import annotations

import json
import math
import resource

import numpy as np
import pytest

from pflcli.artifacts.reader import open_artifact
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.evaluation import convergence, summary
from pflcli.evaluation.presentation import conclusion as words
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.presentation.conclusion import list_notes
from pflcli.execution import Execution


def make_conclusion(methods, baseline):
    summary.correct_p_values(methods, baseline)
    return words.conclude(methods, baseline)


def make_row(label, accuracy, gain, interval, p, *, clients=6, seeds=(0,), worst=0.9):
    shares = {"by_chance": 0.3, "by_chance_high": 0.5}
    better = 5 / 6 if gain > 0 else 1 / 6
    metrics = {
        "accuracy": {"value": accuracy, "n": clients * len(seeds)},
        "worst": {"value": worst},
        "bottom_decile": {"value": worst},
        "gain": {
            "value": gain, "interval": interval, "p": p, "baseline_worst": 0.83, "baseline_bottom_decile": 0.84,
        },
        "better_off": {"value": better, "exceeds_chance": better > 0.5, **shares},
        "worse_off": {"value": 1 - better, "exceeds_chance": better < 0.5, **shares},
    }  # fmt: skip
    return {"label": label, "method": label, "seeds": list(seeds), "metrics": metrics}


BASE = {
    "label": "fedavg", "method": "fedavg", "seeds": [0],
    "metrics": {"accuracy": {"value": 0.8, "n": 6}, "gain": {"value": 0.0}},
}  # fmt: skip


def test_conclusion_names_the_best_method_shown_to_be_better():
    methods = [
        make_row("lucky", 0.95, 0.15, [-0.01, 0.31], 0.06),
        make_row("knn-per", 0.863, 0.063, [0.019, 0.115], 0.004, worst=0.93),
        make_row("ditto", 0.85, 0.05, [0.01, 0.09], 0.005),
        make_row("bad", 0.5, -0.3, [-0.4, -0.2], 0.001),
        BASE,
    ]
    actual = make_conclusion(methods, "fedavg")
    assert actual["sentence"] == (
        "best: knn-per, +6.3 points [1.9, 11.5] over fedavg; 5 of 6 clients better off, 1 worse; "
        "worst client 83 to 93 %; 2 of 4 methods shown to be better; it was chosen among 4, so expect slightly less on "
        "new data"
    )
    assert (actual["best"], actual["better"], actual["worse"]) == ("knn-per", ["knn-per", "ditto"], ["bad"])
    assert (actual["correction"], actual["compared"]) == ("Holm", 4)


def test_conclusion_names_no_best_when_significance_is_lost_by_correction():
    """Its interval excludes 0, but one of twenty does so by chance."""
    methods = [BASE, *(make_row(f"m{k}", 0.8, 0.0, [-0.1, 0.1], 0.9) for k in range(19))]
    lucky = make_row("lucky", 0.9, 0.1, [0.01, 0.19], 0.03)
    assert make_conclusion([BASE, lucky], "fedavg")["best"] == "lucky"
    actual = make_conclusion([*methods, lucky], "fedavg")
    assert actual["sentence"] == (
        "lucky has the highest gain over fedavg, +10.0 points [1.0, 19.0]; 5 of 6 clients better off, 1 worse; the "
        "interval excludes 0, but the difference is not significant after Holm's correction for 20 methods (p = 0.6); "
        "more seeds may decide it, as by compare --seeds 0,1,2"
    )
    assert actual["best"] is None


@pytest.mark.parametrize(
    ("positive", "p", "expected"),
    [
        (3, 0.08, ["points [11.2, 37.9] in each of 3 seeds; 5 of 6", "as by compare --seeds 4,5,7,0,1"]),
        (2, 0.08, ["points [11.2, 37.9] in 2 of 3 seeds; 5 of 6", "as by compare --seeds 4,5,7,0,1"]),
        (3, 0.01, ["points [11.2, 37.9] over fedavg in each of 3 seeds; 5 of 6"]),
    ],
)
def test_conclusion_says_in_how_many_seeds_a_gain_is_positive(positive, p, expected):
    method = make_row("stack", 0.9, 0.246, [0.112, 0.379], p, seeds=(4, 5, 7))
    method["metrics"]["gain"]["positive_seeds"] = positive
    sentence = make_conclusion([BASE, method], "fedavg")["sentence"]
    assert [part for part in expected if part not in sentence] == []
    assert ("more seeds" in sentence) == (p > 0.05)


def test_conclusion_for_many_clients_and_without_a_baseline():
    many = make_row("knn-per", 0.9, 0.1, [0.05, 0.15], 0.001, clients=60)
    assert (
        "; 50 of 60 clients better off, 10 worse; bottom decile 84 to 90 %"
        in make_conclusion([many], "global")["sentence"]
    )
    assert "over the global model;" in make_conclusion([many], "global")["sentence"]
    assert make_conclusion([BASE], None)["sentence"] == "no gain is known: the baseline was not compared"
    assert make_conclusion([BASE], "fedavg")["sentence"] == "no method was compared with fedavg"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [("a", 0.02, [-0.01, 0.05], 0.2), ("b", -0.1, [-0.2, -0.01], 0.01)],
            "a has the highest gain over fedavg, +2.0 points [-1.0, 5.0]; 5 of 6 clients better off, 1 worse; the "
            "interval includes 0, so this is not a significant difference; more seeds may decide it, as by compare "
            "--seeds 0,1,2",
        ),
        (
            [("local", -0.116, [-0.2, -0.03], 0.01)],
            "local scores worse than fedavg, -11.6 points [-20.0, -3.0]; this difference is significant (p = 0.01)",
        ),
        (
            [("local", -0.116, [-0.25, 0.02], 0.1), ("b", -0.2, [-0.3, -0.1], 0.001)],
            "all 2 methods score worse than fedavg; local loses least, -11.6 points [-25.0, 2.0]; the interval "
            "includes 0, so this is not a significant difference",
        ),
        (
            [("same", 0.0, [0.0, 0.0], 1.0)],
            "no method scores better than fedavg; same has the same score, +0.0 points [0.0, 0.0]; the interval "
            "includes 0, so this is not a significant difference",
        ),
        (
            [("stack", 0.246, [0.112, 0.379], 0.08)],
            "stack has the highest gain over fedavg, +24.6 points [11.2, 37.9]; 5 of 6 clients better off, 1 worse; "
            "the interval excludes 0, but the difference is not significant (p = 0.08); more seeds may decide it, as "
            "by compare --seeds 0,1,2",
        ),
    ],
)
def test_conclusion_without_a_better_method_states_the_highest_gain(rows, expected):
    methods = [BASE, *(make_row(label, 0.8 + gain, gain, interval, p) for label, gain, interval, p in rows)]
    actual = make_conclusion(methods, "fedavg")
    assert actual["sentence"] == expected
    assert actual["best"] is None


def test_notes_explain_marks_and_one_seed():
    metrics = {"methods": [BASE, make_row("a", 0.9, 0.1, [0.05, 0.15], 0.001)], "warnings": ["a: may rise"]}
    metrics["conclusion"] = make_conclusion(metrics["methods"], "fedavg")
    assert [note.split(":")[0] for note in list_notes(metrics)] == [
        "best", "* more clients than expected by chance (in brackets", "one seed", "a",
    ]  # fmt: skip
    assert list_notes({"methods": [BASE]}) == []  # a table from before there were such


def test_table_shows_the_worst_client_instead_of_the_decile_for_few_clients():
    heading = {
        n: tables.build({"methods": [make_row("a", 0.9, 0.1, [0.0, 0.2], 0.1, clients=n)]}).heading for n in (10, 11)
    }
    assert "bottom decile %" not in heading[10]
    assert "worst %" in heading[10]
    assert "bottom decile %" in heading[11]


# Whether it was still rising


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        (0.5 + 0.01 * np.arange(20), 0.06),
        (np.full(20, 0.9), None),
        (0.9 - 0.4 * np.exp(-np.arange(20) / 2), None),  # has risen, and is through
        (0.9 + 0.0005 * np.arange(20), None),  # less than a point
        (0.9 - 0.01 * np.arange(20), None),
        (np.asarray([0.1, 0.2, 0.3]), None),  # too few to say
    ],
)
def test_measure_rise_detects_a_rise_over_the_last_third(accuracy, expected):
    rounds = 5 * np.arange(1, len(accuracy) + 1)
    actual = convergence.measure_rise(rounds, accuracy)
    assert actual == (None if expected is None else (pytest.approx(expected), 30))


def test_measure_rise_ignores_noise():
    draw = np.random.default_rng(0)
    rises = sum(convergence.measure_rise(range(30), 0.8 + 0.02 * draw.normal(size=30)) is not None for _ in range(300))
    assert rises / 300 < 0.06


def test_run_whose_accuracy_still_rises_suggests_more_rounds(pfl, small, tmp_path):
    words = ("--model", "logistic", "--rounds", 6, "--lr", 0.01, "--eval-every", 1, "--participation", 1)
    ran = pfl("train-global", small.p, "-o", tmp_path / "b", *words)
    notice = next(line for line in ran.err.splitlines() if "still rose" in line)
    assert notice.startswith("validation accuracy still rose over the last 3 rounds, fedavg by ")
    assert notice.endswith(" points: try --rounds 12")
    for method in ("fedavg", "fedavg-plus"):
        personalize(method, tmp_path / "b", tmp_path / method)
    ran = pfl("evaluate", tmp_path / "fedavg", tmp_path / "fedavg-plus", "-o", tmp_path / "e")
    (warning,) = json.loads((tmp_path / "e" / "metrics.json").read_text())["warnings"]
    risen = notice.removesuffix(" points: try --rounds 12").rsplit(" ", 1)[1]
    assert warning == notice.replace(f"fedavg by {risen}", f"fedavg by {risen}, fedavg-plus by {risen}")
    assert warning in ran.err
    assert warning in (tmp_path / "e" / "table.md").read_text()
    assert (tmp_path / "e" / "table.csv").is_file()


def test_run_of_one_round_does_not_suggest_more_rounds(pfl, small, tmp_path):
    ran = pfl("train-global", small.p, "-o", tmp_path / "b", "--model", "logistic", "--rounds", 1)
    assert "still rose" not in ran.err


# What it cost


@pytest.mark.parametrize("jobs", [0, 1])
def test_processor_seconds_count_worker_processes(small, tmp_path, jobs):
    def of_children():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = of_children()
    train_global(small.p, tmp_path / "b", settings={"model": "mlp", "rounds": 2}, execution=Execution(jobs=jobs))
    spent = of_children() - before
    backbone = open_artifact(tmp_path / "b").manifest.made
    assert (spent > 0) == bool(jobs)
    assert backbone["processor_seconds"] > spent
    personalize("fedavg", tmp_path / "b", tmp_path / "m")
    personalized = open_artifact(tmp_path / "m").manifest.made
    assert personalized["processor_seconds_inputs"] == backbone["processor_seconds"]
    assert personalized["processor_seconds"] > 0
    assert not math.isnan(personalized["processor_seconds"])


def make_rows(**learned):
    return [{"label": label, "learned_from": splits, "metrics": {}, "seeds": [0]} for label, splits in learned.items()]


def test_notes_state_the_splits_that_methods_learned_from():
    train, both = ["train"], ["train", "validation"]
    (line,) = list_notes({"methods": make_rows(local=train, fedavg=train)})
    assert "learned from training samples" in line
    assert "--refit" not in line
    (line,) = list_notes({"methods": make_rows(local=both, fedavg=both)})
    assert "training and validation samples (--refit)" in line
    (line,) = list_notes({"methods": make_rows(local=both, fedavg=train)})
    assert line.startswith("not a fair comparison: local also learned from validation samples")
