"""The conclusion of a table: each answer with its qualifications, in every output; the notes below it."""

from __future__ import annotations

import json
import math
import re
import resource
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import t

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.cli import console
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core.execution import Execution
from pflcli.core.metrics import catalogue
from pflcli.core.tasks import Labels
from pflcli.evaluation import convergence, latex, scoring, summary
from pflcli.evaluation.presentation import conclusion, tables
from pflcli.evaluation.presentation.conclusion import NO_GAIN, PAYS, UNKNOWN, WORSE, Conclusion, Marks
from pflcli.evaluation.presentation.notes import list_notes
from pflcli.evaluation.stored_comparison import Comparison
from pflcli.evaluation.summary import ScoredPredictions
from pflcli.plugins.page import html


def make_row(label, accuracy, gain, interval, *, clients=6, seeds=(0,), **more):
    better = 5 / 6 if gain > 0 else 1 / 6
    shares = {"by_chance": 0.3, "by_chance_high": 0.5}
    metrics = {
        "accuracy": {"value": accuracy, "n": clients * len(seeds)},
        "gain": {"value": gain, "interval": interval, "p": 0.01, "n": clients * len(seeds)},
        "better_off": {"value": better, "exceeds_chance": better > 0.5, **shares},
        "worse_off": {"value": 1 - better, "exceeds_chance": better < 0.5, **shares},
        "worst": {"value": 0.9},
        "bottom_decile": {"value": 0.9},
        "megabytes": {"value": 12.0},
        "seconds": {"value": 3.0},
    }
    return {
        "label": label,
        "method": label,
        "seeds": list(seeds),
        "learned_from": ["train"],
        "metrics": metrics,
        **more,
    }


SEEDS = (0, 1, 2)
BASE = {
    "label": "fedavg", "method": "fedavg", "seeds": [*SEEDS], "personal": False, "learned_from": ["train"],
    "metrics": {"accuracy": {"value": 0.8, "n": 18}, "gain": {"value": 0.0}, "megabytes": {"value": 10.0}},
}  # fmt: skip


def conclude(*rows, baseline="fedavg", **more):
    return conclusion.conclude([BASE, *rows], baseline, **more)


# The answers


def test_a_method_that_is_shown_to_be_better_pays():
    served = {"clients": ["north", "south"], "count": 2, "value": 0.5, "baseline": 0.25}
    found = conclude(make_row("ditto", 0.86, 0.06, [0.019, 0.115], seeds=SEEDS, worst_served=served))
    assert found.answer == PAYS
    assert found.sentences == [
        "Personalization pays here: ditto, +6.0 points [+1.9, +11.5] over fedavg",
        "ditto: 5 of 6 clients better off, beyond chance (1.8 expected); 1 worse off, not beyond chance (1.8 "
        "expected), on average over seeds; worst served: north, south (50.0 %, under fedavg 25.0 %)",
        "ditto sends 12.0 MB in a run of 3.0 s; fedavg sends 10.0 MB",
    ]


def test_the_best_method_is_that_with_the_highest_score():
    """A method with a short interval does not hide one that is far ahead."""
    rows = [
        make_row("gaussian-head", 1.0, 0.209, [0.107, 0.31], seeds=SEEDS),
        make_row("prior", 0.89, 0.09, [0.042, 0.139], seeds=SEEDS),
    ]
    found = conclude(*rows)
    assert (found.best, found.shown, found.better) == ("gaussian-head", "gaussian-head", ["gaussian-head", "prior"])
    assert "gaussian-head, +20.9 points [+10.7, +31.0] over fedavg; 2 of 2 methods are shown to gain" in found.sentence


def test_the_highest_method_that_is_not_shown_is_named_beside_a_lower_one_that_is():
    rows = [
        make_row("gaussian-head", 1.0, 0.209, [-0.01, 0.43], seeds=SEEDS),
        make_row("prior", 0.89, 0.09, [0.042, 0.139], seeds=SEEDS),
    ]
    found = conclude(*rows)
    assert (found.answer, found.best, found.shown) == (PAYS, "gaussian-head", "prior")
    assert found.sentence == (
        "Personalization pays here: prior, +9.0 points [+4.2, +13.9] over fedavg; gaussian-head has the best accuracy, "
        "but its gain is not shown, +20.9 points [-1.0, +43.0]; 1 of 2 methods is shown to gain"
    )
    assert found.clients.startswith("prior: ")


def test_without_a_gain_the_baseline_stays_and_larger_gains_are_excluded():
    """The method with the highest score need not have the highest upper end."""
    rows = [
        make_row("a", 0.82, 0.02, [-0.01, 0.05], seeds=SEEDS),
        make_row("b", 0.7, -0.1, [-0.3, 0.1], seeds=SEEDS),
        make_row("c", 0.6, -0.2, [-0.3, -0.1], seeds=SEEDS),
    ]
    found = conclude(*rows)
    assert (found.answer, found.best, found.shown, found.excluded) == (NO_GAIN, "a", None, 0.1)
    assert found.sentence == (
        "No gain was shown: stay with fedavg; gains above 10.0 points are excluded (highest: a, +2.0 points [-1.0, "
        "+5.0]) (More seeds may decide it: type --seeds 0,1,2,3,4)"
    )
    assert found.harm == "Shown to be worse than fedavg: c, -20.0 points [-30.0, -10.0]"


def test_a_bound_beyond_100_percent_excludes_nothing():
    assert "; no gain is excluded (a, " in conclude(make_row("a", 0.82, 0.02, [-0.5, 0.54], seeds=SEEDS)).sentence


def test_a_tie_excludes_nothing():
    sentence = conclude(make_row("fedbn", 0.8, 0.0, [0.0, 0.0], seeds=SEEDS)).sentence
    assert sentence.startswith(
        "No gain was shown: stay with fedavg; no method differs from it on a scored sample (fedbn, "
    )


def test_methods_that_are_all_shown_to_be_worse():
    rows = [
        make_row(label, 0.8 + gain, gain, [gain - 0.1, gain + 0.09], seeds=SEEDS)
        for label, gain in (("a", -0.1), ("b", -0.2))
    ]
    assert conclude(rows[0]).answer == WORSE
    assert (
        conclude(rows[0]).sentence == "a is shown to be worse than fedavg, -10.0 points [-20.0, -1.0]: stay with fedavg"
    )
    both = conclude(*rows)
    assert ", and so is the 1 other method: stay with fedavg" in both.sentence
    assert (both.answer, both.harm) == (WORSE, "")


def test_one_model_for_all_is_no_personalization():
    shown = make_row("fedprox", 0.9, 0.1, [0.05, 0.15], seeds=SEEDS, personal=False)
    assert conclude(shown).sentence.startswith("A gain is shown: fedprox, ")
    assert conclude(shown, baseline="global").sentence.startswith("A gain is shown: fedprox, ")
    other = make_row("ditto", 0.9, 0.1, [0.05, 0.15], seeds=SEEDS, personal=True)
    base = {**make_row("local", 0.8, 0.0, None, personal=True), "metrics": BASE["metrics"]}
    sentence = conclusion.conclude([base, other], "local").sentence
    assert sentence.startswith("A gain is shown: ditto, +10.0 points [+5.0, +15.0] over local")
    assert "over the global model" in conclude(other, baseline="global").sentence


def test_tables_without_an_interval_say_why():
    untested = make_row("a", 0.9, 0.1, None)
    del untested["metrics"]["gain"]["p"]
    alone = make_row("a", 0.9, 0.1, None)
    del alone["metrics"]["gain"]
    reference = {**alone, "label": "pooled", "reference": True}
    cases = {
        "no baseline was compared: a has the best accuracy, 90.0 %": conclude(alone, baseline=None),
        "gains have no intervals, which need two clients: a": conclude(untested),
        "no method was compared with fedavg: a": conclude(alone),
        "no method was compared with fedavg: fedavg": conclude(reference),
        "all rows are references: pooled has": conclusion.conclude([reference], None),
    }
    for words, found in cases.items():
        assert f"No gain is known, as {words}" in found.sentence
        assert found.answer == UNKNOWN


def test_other_metrics_have_their_name_unit_and_direction():
    lower = next(metric for metric in catalogue.METRICS.values() if metric.ranks and metric.lower_is_better)
    rows = [
        make_row(label, 0.9, gain, [gain - 0.1, gain + 0.1], seeds=SEEDS) for label, gain in (("a", 0.2), ("b", 0.3))
    ]
    for row, value in zip(rows, (0.4, 0.3), strict=True):
        row["metrics"][lower.name] = {"value": value}
    found = conclude(*rows, metric=lower.name)
    assert (found.best, found.shown) == ("b", "b")
    assert f"pays here by {lower.heading}: b, +" in found.sentence


# Qualifications


def test_training_that_is_not_finished_qualifies_every_answer():
    rising = {"rise": 0.1, "rounds": 30, "advised": 120}
    for gain in (0.2, 0.0, -0.2):
        row = make_row("a", 0.8 + gain, gain, [gain - 0.1, gain + 0.1], seeds=SEEDS, unfinished=rising)
        found = conclude(row)
        assert "(Training is not finished: type --rounds 120)" in found.sentence
        assert found.unfinished == 120
    reference = make_row("pooled", 0.9, 0.1, None, unfinished=rising, reference=True)
    assert conclude(make_row("a", 0.8, 0.0, [-0.1, 0.1], seeds=SEEDS), reference).unfinished is None
    stopped = make_row("b", 0.9, 0.0, [-0.1, 0.1], seeds=SEEDS, unfinished={**rising, "advised": "flat"})
    assert "(Training is not finished: type --patience flat)" in conclude(stopped).sentence
    assert "(Training is not finished: type --rounds 120)" in conclude(row, stopped).sentence


def test_a_baseline_below_the_most_frequent_class_is_said_in_the_same_sentence():
    row = make_row("a", 0.9, 0.1, [0.05, 0.15], seeds=SEEDS)
    assert "most frequent class" not in conclude(row, majority=0.79).sentence
    expected = "; but fedavg (80.0 %) is not above the most frequent class (80.0 %): it has learned nothing yet"
    assert expected in conclude(row, majority=0.8).sentence
    constant = {"label": "floor", "method": "constant", "seeds": [0], "metrics": {"accuracy": {"value": 0.85}}}
    assert "fedavg (80.0 %) is not above the most frequent class (85.0 %)" in conclude(
        row, {**constant, "reference": True}, majority=0.1
    ).sentence  # fmt: skip
    found = conclusion.conclude([row], "global", majority=0.85).sentence
    assert "but the global model (80.0 %) is not above the most frequent class (85.0 %)" in found


@pytest.mark.parametrize(
    ("gain", "seeds", "level", "words"),
    [
        (0.2, (0,), 0.95, "(One seed does not show how much training varies: type --seeds 0,1,2)"),
        (0.2, (4, 5), 0.95, ""),
        (0.02, (4, 5, 7), 0.95, "(More seeds may decide it: type --seeds 4,5,7,0,1)"),
        (0.02, (4, 5, 7), 0.99, ""),
        (-0.02, (4, 5, 7), 0.95, ""),
    ],
)
def test_seeds_are_proposed_for_one_seed_and_for_a_gain_that_is_not_shown(gain, seeds, level, words):
    row = make_row("a", 0.8 + gain, gain, [gain - 0.1, gain + 0.1], seeds=seeds)
    sentence = conclude(row, level=level).sentence
    assert sentence.endswith(words) if words else "seeds" not in sentence


def test_gain_says_under_how_many_seeds_it_is_positive():
    row = make_row("a", 0.9, 0.1, [0.05, 0.15], seeds=SEEDS)
    row["metrics"]["gain"]["positive_seeds"] = 3
    assert "over fedavg, positive under each of 3 seeds" in conclude(row).sentence
    row["metrics"]["gain"]["positive_seeds"] = 2
    assert "over fedavg, positive under 2 of 3 seeds" in conclude(row).sentence


def test_intervals_of_several_gains_have_their_level_together():
    def rows():
        found = [make_row(f"m{number}", 0.9, 0.1, None) for number in range(4)]
        for row in found:
            row["metrics"]["gain"] |= {"standard_error": 0.04, "degrees_of_freedom": 30, "p": 0.02}
        return found

    alone, four = rows()[:1], rows()
    conclusion.judge_gains(alone, "fedavg")
    conclusion.judge_gains(four, "fedavg")
    assert alone[0]["metrics"]["gain"]["interval"] == pytest.approx(
        [0.1 - 0.04 * t.ppf(0.975, 30), 0.1 + 0.04 * t.ppf(0.975, 30)]
    )
    assert four[0]["metrics"]["gain"]["interval"] == pytest.approx(
        [0.1 - 0.04 * t.ppf(1 - 0.05 / 8, 30), 0.1 + 0.04 * t.ppf(1 - 0.05 / 8, 30)]
    )
    assert four[0]["metrics"]["gain"]["p_corrected"] == pytest.approx(0.08)


@pytest.mark.parametrize(("unit", "ends"), [("fraction", [-1, 1]), ("nats", [-50, 50])])
def test_interval_of_a_gain_in_a_fraction_ends_at_a_hundred_points(unit, ends):
    row = make_row("a", 0.6, 0.1, None)
    row["metrics"]["gain"] |= {"standard_error": 4.0, "degrees_of_freedom": 1, "p": 0.9, "unit": unit}
    conclusion.judge_gains([row], "fedavg")
    low, high = row["metrics"]["gain"]["interval"]
    assert (low, high) == (-1, 1) if unit == "fraction" else low < ends[0] < ends[1] < high


# Random tables: sentence, marks and intervals agree in every output


def draw_run(rng, skill, offsets, y, classes):
    """Return probabilities (n, C) of predictions that are right with the probability of each client."""
    right = rng.random(len(y)) < np.repeat(skill, np.diff(offsets))
    guess = np.where(right, y, rng.integers(classes, size=len(y)))
    p = rng.dirichlet(np.ones(classes), len(y)) + 2 * np.eye(classes)[guess]
    return (p / p.sum(axis=1, keepdims=True)).astype(np.float32)


def draw_table(seed):
    """Return the metrics of a table of random clients, seeds, methods, baseline and ranking metric."""
    rng = np.random.default_rng(seed)
    clients, classes, count = int(rng.integers(1, 30)), int(rng.integers(2, 5)), int(rng.integers(1, 7))
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 30, clients))])
    metric = str(rng.choice(["accuracy", "log_loss", "balanced_accuracy"]))
    names = [metric]
    skill = np.clip(rng.uniform(0.2, 0.8) + rng.normal(0, 0.1, clients), 0, 1)
    y = rng.integers(classes, size=offsets[-1])
    labels = ["fedavg", *(f"m{number}" for number in range(1, count))]
    baseline = str(rng.choice(labels))
    groups = {label: [] for label in labels}
    for label in labels:
        effect = 0 if label == "fedavg" else rng.choice([-0.3, -0.1, 0, 0.1, 0.3])
        for run in range(int(rng.integers(1, 4)) if seed % 5 == 0 else 1 + seed % 3):
            p = draw_run(rng, np.clip(skill + effect + rng.normal(0, 0.05), 0, 1), offsets, y, classes)
            answers = SplitPredictions({"p": p}, y, np.arange(len(y)), offsets)
            is_reference = label not in ("fedavg", baseline) and rng.random() < 0.1
            more = {"names": [f"c{client}" for client in range(clients)], "class_names": [*"abcd"][:classes]}
            more |= {"metric_names": tuple(names), "labels": Labels(2)}
            groups[label].append(
                (ScoredPredictions(label=label, method=label, seed=run, **more), partial(lambda each: each, answers))
            )
        if is_reference:
            groups[label] = [(replace(item, is_reference=True), read) for item, read in groups[label]]
    paired = scoring.add_records([run for runs in groups.values() for run in runs], baseline)
    groups = {label: [item for item in paired if item.label == label] for label in labels}
    identities = {label: {item.seed: np.asarray(item.names) for item in items} for label, items in groups.items()}
    rows = [summary.summarize_scores(label, items, identities[label]) for label, items in groups.items()]
    made = {"split": "test", "metric": names, "baseline": baseline, "methods": rows}
    return json.loads(json.dumps(scoring.replace_nonfinite(scoring.judge(made, groups, identities))))


def write_table(folder, metrics):
    with ArtifactWriter(folder, ArtifactSpec("evaluation", {"split": "test"})).prepare() as work:
        work.write(evaluation.METRICS, json.dumps(metrics).encode())
        work.commit({"methods": len(metrics["methods"])}, {})
    return open_artifact(folder)


def read_signs(cell):
    """Return the signs of the ends of an interval in a cell; empty without one."""
    found = re.search(r"\[([+-])([\d.]+), ([+-])([\d.]+)\]", cell)
    return (found[1], found[3]) if found else ()


@pytest.mark.parametrize("block", range(10))
def test_sentence_marks_and_intervals_of_random_tables_agree(block, tmp_path, capsys):
    answers = set()
    for number in range(20 * block, 20 * block + 20):
        metrics = draw_table(number)
        found, baseline = Conclusion.read(metrics), metrics["baseline"]
        answers.add(found.answer)
        artifact = write_table(tmp_path / str(number), metrics)

        # The printed intervals decide.
        shown = tables.build(metrics)
        cells = dict(zip((row["label"] for row in metrics["methods"]), shown.rows, strict=True))
        column = shown.heading.index(next(title for title in shown.heading if title.startswith("gain")))
        printed = {label: cells[label][column] for label in found.judged}
        assert {*found.better} == {label for label, cell in printed.items() if read_signs(cell) == ("+", "+")} - {
            label for label, cell in printed.items() if "[+0.0, +0.0]" in cell or "[+0.000, +0.000]" in cell
        }
        assert {*found.worse} == {label for label, cell in printed.items() if read_signs(cell) == ("-", "-")}
        expected = PAYS if found.better else UNKNOWN if not printed else NO_GAIN
        assert found.answer == (WORSE if printed and {*found.worse} == {*printed} else expected)

        # The best method has the highest score, and the sentence has its printed interval.
        entry = catalogue.METRICS[metrics["metric"][0]]
        score = {row["label"]: entry.sign * row["metrics"][entry.name]["value"] for row in metrics["methods"]}
        if printed:
            assert score[found.best] == max(score[label] for label in printed)
            assert found.shown is None or score[found.shown] == max(score[label] for label in found.better)
        for label in {found.best, found.shown} - {None}:
            assert printed[label].lstrip("+") in found.sentence.replace(" points", ""), number

        # The marks of the ranking column say the same about each pair with the baseline.
        marks = Marks.read(metrics, [entry.name])[entry.name]
        for best in marks.best & {baseline, *found.judged} if len(marks.best) == 1 else ():
            if best != baseline and baseline not in marks.best:
                assert (baseline in marks.not_worse) == (best not in found.better), number
            elif best == baseline:
                not_worse = marks.not_worse & {*found.judged}
                assert not_worse == {*found.judged} - {*found.worse} - marks.best, number

        # Every output prints the same conclusion.
        capsys.readouterr()
        console.scores(artifact, to_stderr=False)
        assert capsys.readouterr().err.splitlines()[: len(found.sentences)] == found.sentences
        assert "\n\n".join(found.sentences) in scoring.render_markdown(metrics, "evaluation")
        assert latex.escape(found.sentence) in latex.render(artifact)
        comparison = Comparison(artifact, metrics, None)
        assert comparison.answer == found.sentences
        page = html._render_table(html.Section(comparison, [], [], None, None))
        for label, cell in printed.items():
            assert cell in page, label
    assert len(answers) > 1


# The notes


def test_notes_explain_marks_and_one_seed():
    rows = [{**BASE, "seeds": [0]}, make_row("a", 0.9, 0.1, [0.05, 0.15]), make_row("b", 0.9, 0.1, [0.05, 0.15])]
    for row in rows[1:]:
        row["metrics"]["gain"]["p_corrected"] = 0.02
    _, *notes = list_notes({"methods": rows, "warnings": ["a: may rise"]})
    assert [note.split(":")[0] for note in notes] == [
        "* more clients than expected by chance (in brackets", "intervals", "one seed", "a",
    ]  # fmt: skip
    assert "95 % together" in notes[1]


def test_methods_that_failed_under_the_same_seeds_share_a_note():
    (_, note, other) = list_notes({"methods": [BASE], "failed": {"a": [0, 1], "b": [0, 1], "c": [1]}})
    assert note == "`a`, `b` failed under seed 0, 1"
    assert other == "`c` failed under seed 1"


def test_table_shows_the_worst_client_instead_of_the_decile_for_few_clients():
    heading = {n: tables.build({"methods": [make_row("a", 0.9, 0.1, [0.0, 0.2], clients=n)]}).heading for n in (10, 11)}
    assert "bottom decile %" not in heading[10]
    assert "worst %" in heading[10]
    assert "bottom decile %" in heading[11]


# Whether it was still rising


ROUNDS = 5 * np.arange(1, 21)
RISES = ((18, 0.02), (20, 0.04), (19, 0.03))
"""Numbers of measurements of runs, and what each gains per doubling of the rounds."""


@pytest.mark.parametrize(
    ("accuracy", "samples", "expected"),
    [
        (0.5 + 0.02 * np.log2(ROUNDS), 0, 0.02),
        (0.5 + 0.02 * np.log2(ROUNDS), 151, 0.02),  # three samples
        (0.5 + 0.02 * np.log2(ROUNDS), 149, None),  # fewer
        (0.5 + 0.009 * np.log2(ROUNDS), 0, None),  # less than a point
        (np.full(20, 0.9), 0, None),
        (0.9 - 0.4 * np.exp(-np.arange(20)), 0, None),  # has risen, and is through
        (0.9 - 0.01 * np.arange(20), 0, None),
        (np.asarray([0.1, 0.2, 0.3]), 0, None),  # too few to say
        (np.where(ROUNDS < 25, 0.0, 0.5 + 0.02 * np.log2(ROUNDS)), 0, 0.02),  # the first quarter does not count
    ],
)
def test_measure_rise_is_the_gain_per_doubling_of_the_rounds(accuracy, samples, expected):
    actual = convergence.measure_rise([(ROUNDS[: len(accuracy)], accuracy)], samples)
    assert actual == (None if expected is None else pytest.approx(expected))


def test_runs_that_end_in_different_rounds_are_each_judged_by_their_own():
    """The law that a rise is found whatever the rounds in which seeds were measured, as --patience lets them end."""
    rising = [(ROUNDS[:count].tolist(), (0.5 + gain * np.log2(ROUNDS[:count])).tolist()) for count, gain in RISES]
    expected = np.mean([gain for _, gain in RISES])
    assert convergence.measure_rise(rising) == pytest.approx(expected)
    fact = convergence.measure_mean_rise([*rising, ([], [])], 0)
    assert fact == {"rise": pytest.approx(expected), "rounds": 100, "advised": 400}
    flat = [(rounds, np.full(len(rounds), 0.9).tolist()) for rounds, _ in rising]
    assert convergence.measure_mean_rise(flat, 0) is None
    assert convergence.measure_mean_rise([rising[0], *flat], 0) is None  # less than a point on average


def test_measure_rise_ignores_noise():
    draw, rounds = np.random.default_rng(0), range(1, 31)
    rises = sum(convergence.measure_rise([(rounds, 0.8 + 0.02 * draw.normal(size=30))]) is not None for _ in range(300))
    assert rises / 300 < 0.01
    line = 0.8 + 0.02 * np.log2(rounds)
    rises = [convergence.measure_rise([(rounds, line + 0.005 * draw.normal(size=30))]) for _ in range(100)]
    assert np.mean([rise is not None for rise in rises]) > 0.95


def test_run_whose_accuracy_still_rises_suggests_more_rounds(pfl, small, tmp_path):
    words = ("--model", "logistic", "--rounds", 6, "--lr", 0.01, "--eval-every", 1, "--participation", 1)
    ran = pfl("train-global", small.p, "-o", tmp_path / "b", *words)
    notice = next(line for line in ran.err.splitlines() if "still rose" in line)
    assert notice.startswith("validation accuracy still rose at round 6: fedavg +")
    end = " points per doubling of the rounds: type --rounds 24"
    assert notice.endswith(end)
    for method in ("fedavg", "fedavg-plus"):
        personalize(method, tmp_path / "b", tmp_path / method)
    ran = pfl("evaluate", tmp_path / "fedavg", tmp_path / "fedavg-plus", "-o", tmp_path / "e")
    (warning,) = json.loads((tmp_path / "e" / "metrics.json").read_text())["warnings"]
    risen = notice.removesuffix(end).rsplit(" ", 1)[1]
    assert warning == notice.replace(f"fedavg {risen}", f"fedavg {risen}, fedavg-plus {risen}")
    assert warning in ran.err
    assert warning in (tmp_path / "e" / "table.md").read_text()
    assert (tmp_path / "e" / "table.csv").is_file()


def test_run_that_patience_ended_while_accuracy_rose_suggests_patience_and_not_rounds(pfl, small, tmp_path):
    words = ("--model", "logistic", "--rounds", 80, "--lr", 0.02, "--eval-every", 1, "--participation", 1)
    for patience, advice in ((2, "--patience flat"), ("flat", "--rounds 320")):  # flat goes on to round 80
        ran = pfl("train-global", small.p, "-o", tmp_path / f"{patience}", *words, "--patience", patience)
        assert [line.partition(": type ")[2] for line in ran.err.splitlines() if "still rose" in line] == [advice]
    personalize("fedavg", tmp_path / "2", tmp_path / "m")
    pfl("evaluate", tmp_path / "m", "-o", tmp_path / "e")
    facts = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert "(Training is not finished: type --patience flat)" in facts["conclusion"]["sentence"]
    assert "--rounds" not in " ".join(facts["warnings"])


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
