"""What a page shows of a comparison comes from the comparison's own files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic

from pflcli.artifacts.reader import open_artifact
from pflcli.errors import InputError
from pflcli.evaluation.page import lineage, runs, sentences
from pflcli.evaluation.page.comparison import (
    MAX_DRAWN,
    Clients,
    Comparison,
    _find_ranking_metric,
    _read_clients,
    read_comparison,
)

GOLDEN = Path(__file__).parents[2] / "golden"


def test_scores_of_clients_are_means_over_seeds(compared):
    comparison = read_comparison(open_artifact(compared.path))
    table = pd.read_csv(compared.path / "clients.csv")
    assert comparison.seeds == [0, 1]
    assert {*comparison.methods} == {"fedavg", "knn-per", "panm"}
    expected = table[table["n_test"] > 0].groupby(["method", "name"])["accuracy"].mean()
    for label in comparison.methods:
        for name, score in zip(comparison.clients.names, comparison.clients.scores[label], strict=True):
            assert score == pytest.approx(expected[label, name])
    np.testing.assert_allclose(comparison.clients.baseline, comparison.clients.scores["fedavg"])
    assert ("knn-per", "lambda") in comparison.clients.tuned


def test_the_same_number_under_two_partitions_is_another_client():
    rows = [("fedavg", seed, client, 5, 0.5 + 0.1 * seed, 0.5, 0.0) for seed in (0, 1) for client in (0, 1)]
    table = pd.DataFrame(rows, columns=["method", "seed", "client", "n_test", "accuracy", "baseline_accuracy", "gain"])
    metrics = {"split": "test", "baseline": "fedavg", "methods": [{"label": "fedavg", "seeds": [0, 1]}]}
    apart = _read_clients(table, metrics, "accuracy", is_one_partition=False)
    assert apart.names == ["client 0, seed 0", "client 1, seed 0", "client 0, seed 1", "client 1, seed 1"]
    together = _read_clients(table, metrics, "accuracy", is_one_partition=True)
    assert together.names == ["client 0", "client 1"]
    np.testing.assert_allclose(together.scores["fedavg"], 0.55)


def test_many_clients_are_thinned_at_even_distances_with_the_worst_and_the_best(tmp_path):
    names = [f"c{number}" for number in range(1000)]
    clients = read_comparison(synthetic.comparison(tmp_path / "comparison", ["fedavg", "local"], names)).clients
    assert clients.is_thinned
    assert len(clients.drawn) == MAX_DRAWN
    assert {clients.order[0], clients.order[-1]} <= {*clients.drawn}
    steps = np.diff(np.flatnonzero(np.isin(clients.order, clients.drawn)))
    assert set(steps) <= {5, 6, 4}


@pytest.mark.parametrize(("lower_is_better", "order"), [(False, [1, 0, 2]), (True, [2, 0, 1])])
def test_the_worst_served_clients_come_first(lower_is_better, order):
    baseline = np.asarray([0.5, 0.1, 0.9])
    clients = Clients([*"abc"], [(0, 0), (0, 1), (0, 2)], np.ones(3), {}, baseline, lower_is_better, {})
    assert clients.order.tolist() == order


def test_namesakes_are_two_clients(tmp_path):
    clients = read_comparison(
        synthetic.comparison(tmp_path / "comparison", ["fedavg", "local"], ["A", "A", "B"])
    ).clients
    assert clients.names == ["A (client 0)", "A (client 1)", "B"]


@pytest.mark.parametrize("kind", ["comparison", "evaluation"])
@pytest.mark.parametrize("at", sorted(GOLDEN.glob("schema-*")), ids=lambda path: path.name)
def test_old_artifacts_are_shown(at, kind):
    comparison = read_comparison(open_artifact(at / kind))
    assert sentences.answer(comparison)[0].endswith(".")
    runs.read(comparison, lineage.trace(comparison.artifact))


def test_a_metric_of_a_newer_pfl_is_named():
    with pytest.raises(InputError, match="newer pfl"):
        _find_ranking_metric({"metric": ["fairness"]})


def test_what_runs_add(compared):
    comparison = read_comparison(open_artifact(compared.path))
    added = runs.read(comparison, lineage.trace(comparison.artifact))
    assert {*added.curves} >= {"fedavg", "panm"}
    assert [number for number, _ in added.curves["fedavg"]] == [1, 2, 3]
    assert added.holdings.counts.sum() > 0
    assert {*added.holdings.clients} >= {*comparison.clients.names}
    assert "panm" in {relation.method for relation in added.relations}
    assert not added.remarks


def test_the_answer_gives_gain_interval_worst_served_shares_and_cost(tmp_path):
    names = [f"c{number}" for number in range(50)]
    comparison = read_comparison(synthetic.comparison(tmp_path / "comparison", ["fedavg", "local", "knn-per"], names))
    lead, *facts = sentences.answer(comparison)
    gain = comparison.row("knn-per")["metrics"]["gain"]
    low, high = (100 * bound for bound in gain["interval"])
    assert lead == (
        f"knn-per serves 50 clients {100 * gain['value']:.1f} points better than fedavg "
        f"(95 % interval {low:.1f} to {high:.1f})."
    )
    text = " ".join(facts)
    for words in ("worst-served tenth", "of 50 clients are better off", "sends 200 MB", "2 of 2 methods are shown"):
        assert words in text


def test_numbers_of_clients_are_those_of_their_seed():
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    baseline = np.asarray([0.4, 0.3, 0.2, 0.1])
    clients = Clients([*"abcd"], keys, np.ones(4), {}, baseline, lower_is_better=False, tuned={})
    metrics = {"methods": [{"label": "fedavg", "seeds": [0, 1]}]}
    comparison = Comparison(None, metrics, clients)
    assert list(runs._number_clients(comparison, 0).items()) == [(1, 1), (0, 0)]
    assert list(runs._number_clients(comparison, 1).items()) == [(1, 3), (0, 2)]
    assert runs._number_clients(comparison, 7) == runs._number_clients(comparison, 0)


@pytest.mark.parametrize(("number", "text"), [(12345.6, "12,346"), (99.96, "100"), (1.234, "1.23"), (0.0135, "0.0135")])
def test_numbers_are_short(number, text):
    assert sentences._format_number(number) == text


def test_no_method_is_called_better_that_is_not_shown_to_be(tmp_path):
    comparison = read_comparison(synthetic.comparison(tmp_path / "comparison", ["fedavg", "local"], ["a", "b", "c"]))
    comparison.metrics["conclusion"].update(best=None, better=[], compared=1)
    gain = comparison.row("local")["metrics"]["gain"]
    gain.update(value=0.246, interval=[0.112, 0.379], p_corrected=0.08)
    answer = sentences.answer(comparison)[0]
    assert answer.startswith("local is 24.6 points better than fedavg")
    assert answer.endswith("; the interval excludes 0, but the difference is not significant (p = 0.08).")
    gain.update(value=-0.1, interval=[-0.3, 0.1], p_corrected=0.3)
    answer = sentences.answer(comparison)[0]
    assert answer.startswith("local is 10.0 points worse than fedavg")
    assert answer.endswith("; the interval includes 0, so this is not a significant difference.")
    comparison.metrics["conclusion"]["compared"] = 2
    assert sentences.answer(comparison)[0].startswith(
        "local has the best score of the methods compared, but it is 10.0 points worse than fedavg"
    )
