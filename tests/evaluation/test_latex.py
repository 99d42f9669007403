"""``pfl show --latex``: a table for LaTeX, in which bold marks the methods shown to be best."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from helpers import store_predictions
from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.kinds.predictions import Predictions, SplitPredictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.evaluate import evaluate
from pflcli.core import registry
from pflcli.evaluation import latex
from pflcli.evaluation.presentation import tables
from pflcli.evaluation.presentation.conclusion import Marks

GOLDEN = Path(__file__).parents[1] / "golden"
CLIENTS, EACH = 12, 20


def write_predictions(folder, method, right, *, seed=0):
    """Predictions with so many right answers of 20 for each client, with certainty 0.8."""
    y = np.tile(np.arange(EACH) % 2, len(right))
    correct = (np.arange(EACH)[None] < np.asarray(right)[:, None]).ravel()
    guess = np.where(correct, y, 1 - y)
    p = np.where(np.eye(2)[guess] > 0, 0.8, 0.2).astype(np.float32)
    offsets = np.arange(0, len(y) + 1, EACH)
    splits = {name: SplitPredictions({"p": p}, y, np.arange(len(y)), offsets) for name in ("validation", "test")}
    request = {"method": method, "options": {}, "settings": {}, "seed": seed}
    return store_predictions(folder, request, Predictions(splits, {}))


def assert_readable(text):
    """Environments and braces balance, each row has as many cells as columns, and no special character is bare."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    opened = []
    for word, name in re.findall(r"\\(begin|end)\{(\w+)\}", "\n".join(lines)):
        if word == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    columns = 0
    for line in lines:
        assert line.isprintable()
        depth = 0
        for brace in re.findall(r"(?<!\\)[{}]", re.sub(r"\\\\", "", line)):
            depth += 1 if brace == "{" else -1
            assert depth >= 0
        assert depth == 0, line
        plain = re.sub(r"\\[\\{}%&$#_]", "", re.sub(r"\\\\$", "", line))
        assert not re.search(r"[%#_~]", plain), line
        assert plain.count("$") % 2 == 0, line
        assert "^" not in re.sub(r"\$[^$]*\$", "", plain), line
        if found := re.search(r"begin\{tabular\}\{(l+r+)\}", line):
            columns = len(found[1])
        elif line.endswith(r" \\"):
            assert plain.count("&") == columns - 1, line
            assert not line.lstrip().startswith(("[", "*"))
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == text.count(r"\begin{tabular}")


def parse_rows(text):
    """Return the cells of the first table by method and heading."""
    lines = [line.strip().removesuffix(r" \\").split(" & ") for line in text.split(r"\end{table}")[0].splitlines()]
    heading, *body = [line for line in lines if len(line) > 2]
    return {row[0]: dict(zip(heading, row, strict=True)) for row in body}


@pytest.fixture
def three_methods(tmp_path):
    """Methods of which one is much worse than the others, for all clients; these differ by chance."""
    base = np.tile([13, 15, 17], CLIENTS // 3)
    sign = np.tile([1, -1], CLIENTS // 2)
    return [
        write_predictions(tmp_path / "a", "fedavg", base - 8),
        write_predictions(tmp_path / "b", "ditto", base + sign),
        write_predictions(tmp_path / "c", "local", base + np.where(np.arange(CLIENTS) == 0, 1, 0)),
    ]


def find_best(artifact, name):
    found = Marks.read(read(artifact), [name])[name]
    return {*found.best}, {*found.not_worse}


def test_best_method_is_bold_and_those_not_significantly_worse_have_a_dagger(three_methods, tmp_path):
    evaluate(three_methods, tmp_path / "e")
    text = latex.render(open_artifact(tmp_path / "e"))
    assert_readable(text)
    table = parse_rows(text)
    assert {name: row[r"accuracy \%"] for name, row in table.items()} == {
        "FedAvg": "35.0", "Ditto": r"75.0$^{\dagger}$", "Local": r"\textbf{75.4}",
    }  # fmt: skip
    marks = {
        name: (r"\textbf" in row[r"plain mean \%"], "dagger" in row[r"plain mean \%"]) for name, row in table.items()
    }
    assert marks == {"FedAvg": (False, False), "Ditto": (False, True), "Local": (True, False)}
    # Of a bottom decile there is no test, nor of costs.
    assert not any(re.search("textbf|dagger", row[r"bottom decile \%"] + row["MB sent"]) for row in table.values())
    assert re.search(r"\$\+40\.\d\$ \[\$\+\d", table["Ditto"]["gain (points)"])
    caption = re.search(r"\\caption\{(.*)\}", text)[1]
    assert "Bold: the best" in caption
    assert r"$^{\dagger}$ not shown to be worse" in caption


def test_consistent_small_difference_is_significant(tmp_path):
    base = np.tile([13, 15, 17], CLIENTS // 3)
    paths = [write_predictions(tmp_path / "a", "fedavg", base), write_predictions(tmp_path / "b", "ditto", base + 1)]
    evaluate(paths, tmp_path / "e")
    artifact = open_artifact(tmp_path / "e")
    # Clients differ much more from each other than methods do: only pairs of scores show it.
    assert find_best(artifact, "accuracy") == ({"ditto"}, set())
    assert "dagger" not in latex.render(artifact)


def test_equal_scores_are_all_bold(tmp_path):
    base = np.full(CLIENTS, 12)
    paths = [write_predictions(tmp_path / name, name, base) for name in ("fedavg", "ditto")]
    evaluate(paths, tmp_path / "e")
    assert find_best(open_artifact(tmp_path / "e"), "accuracy") == ({"fedavg", "ditto"}, set())


def test_significance_is_corrected_for_the_number_of_methods(tmp_path):
    """A difference that is significant alone is not among many."""
    base = np.full(CLIENTS, 12)
    gap = np.asarray([3, -1, 2, 0, 1, -1, 3, 0, 1, 2, 0, 1])
    paths = [write_predictions(tmp_path / "a", "fedavg", base), write_predictions(tmp_path / "b", "best", base + gap)]
    evaluate(paths, tmp_path / "two")
    paths += [
        write_predictions(tmp_path / f"m{number}", f"m{number}", base + gap - np.roll(gap, number))
        for number in range(1, 6)
    ]
    evaluate(paths, tmp_path / "seven")
    two, seven = (open_artifact(tmp_path / name) for name in ("two", "seven"))
    assert find_best(two, "accuracy") == ({"best"}, set())
    best, not_worse = find_best(seven, "accuracy")
    assert "best" in best
    assert "fedavg" in not_worse


def test_lowest_score_is_best_when_lower_is_better(three_methods, tmp_path):
    evaluate(three_methods, tmp_path / "e", metrics=["brier_score"])
    artifact = open_artifact(tmp_path / "e")
    assert find_best(artifact, "brier_score") == ({"local"}, {"ditto"})
    text = latex.render(artifact)
    assert_readable(text)
    assert next(iter(parse_rows(text)["Local"])) == "method"
    assert r"\textbf" in parse_rows(text)["Local"]["Brier score"]


def test_latex_shows_the_standard_deviation_over_seeds(tmp_path):
    base = np.tile([13, 15, 17], CLIENTS // 3)
    paths = [write_predictions(tmp_path / f"a{seed}", "fedavg", base - seed, seed=seed) for seed in (0, 1)]
    paths += [write_predictions(tmp_path / f"b{seed}", "ditto", base + 2 - seed, seed=seed) for seed in (0, 1)]
    evaluate(paths, tmp_path / "e")
    text = latex.render(open_artifact(tmp_path / "e"))
    assert_readable(text)
    assert parse_rows(text)["FedAvg"][r"accuracy \%"] == r"72.5 $\pm$ 3.5"
    assert parse_rows(text)["Ditto"][r"accuracy \%"] == r"\textbf{82.5 $\pm$ 3.5}"
    assert r"Mean $\pm$ standard deviation over 2 seeds." in text


def test_latex_escapes_names(tmp_path):
    names = [r"a_b%c&d#e$f{g}h~i^j\k<l>m|n", "[x] *y", "*z", "line\nbreak"]
    paths = [write_predictions(tmp_path / f"{n}", name, np.full(CLIENTS, 10 + n)) for n, name in enumerate(names)]
    out = tmp_path / "e_1%"
    evaluate(paths, out, baseline=names[0], coverage=0.9)
    text = latex.render(open_artifact(out))
    assert_readable(text)
    assert (
        r"a\_b\%c\&d\#e\$f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k\textless{}l\textgreater{}m"
        r"\textbar{}n & " in text
    )
    assert "    {}[x] *y & " in text
    assert "    line break & " in text
    assert r"\label{tab:e-1}" in text
    assert r"\label{tab:e-1-sets}" in text
    assert r"Prediction sets at coverage 90 \%" in text


@pytest.mark.parametrize("name", registry.names("methods"))
def test_paper_name_of_a_method_is_unique(name):
    papers = Counter(card.facts["PAPER"] for card in registry.cards("methods"))
    paper = registry.card("methods", name).facts["PAPER"]
    assert papers[paper] == 1
    assert "," not in paper  # a name, not a description such as "FedAvg, baseline"


def test_name_methods_uses_paper_names_and_marks_variants():
    rows = [
        {"label": "fedavg", "method": "fedavg"},
        {"label": "knn-per", "method": "knn-per"},
        {"label": "knn-per@wide", "method": "knn-per"},
        {"label": "ditto lam=0.5", "method": "ditto"},
        {"label": "stack", "method": "stack"},
        {"label": "mine", "method": "mine", "paper": "MyMethod"},
        {"label": "twin", "method": "twin", "paper": "FedAvg"},
        {"label": "of-an-old-table"},
    ]
    assert latex.name_methods(rows) == {
        "fedavg": "fedavg",  # two methods have this name
        "twin": "twin",
        "knn-per": "kNN-Per",
        "knn-per@wide": "kNN-Per (wide)",
        "ditto lam=0.5": "Ditto lam=0.5",
        "stack": "stack",
        "mine": "MyMethod",
        "of-an-old-table": "of-an-old-table",
    }


def test_single_method_is_not_bold(tmp_path):
    evaluate([write_predictions(tmp_path / "a", "fedavg", np.full(CLIENTS, 10))], tmp_path / "e")
    text = latex.render(open_artifact(tmp_path / "e"))
    assert_readable(text)
    assert "textbf" not in text
    assert "Bold" not in text


def test_methods_on_different_clients_are_not_compared(tmp_path):
    base = np.tile([13, 15, 17], CLIENTS // 3)
    paths = [write_predictions(tmp_path / "a", "ditto", base), write_predictions(tmp_path / "b", "local", base[:6])]
    evaluate(paths, tmp_path / "e")
    artifact = open_artifact(tmp_path / "e")
    assert find_best(artifact, "accuracy") == ({"ditto"}, set())


@pytest.mark.parametrize("path", sorted(path.parent for path in GOLDEN.rglob("metrics.json")), ids=str)
def test_latex_renders_tables_of_all_schema_versions(path):
    artifact = open_artifact(path)
    if artifact.kind in tables.KINDS:
        assert_readable(latex.render(artifact))


def test_show_latex_prints_the_table_and_refuses_other_options(three_methods, small, tmp_path, pfl):
    evaluate(three_methods, tmp_path / "e")
    ran = pfl("show", tmp_path / "e", "--latex")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == latex.render(open_artifact(tmp_path / "e"))
    for other in ("--json", "--lineage", "--verify"):
        ran = pfl("show", tmp_path / "e", "--latex", other)
        assert (ran.code, f"--latex and {other} exclude each other" in ran.err) == (2, True)
    ran = pfl("show", small.p, "--latex")
    assert (ran.code, ran.out, "needs an evaluation or a comparison" in ran.err) == (3, "", True)
