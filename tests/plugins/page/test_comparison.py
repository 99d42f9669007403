"""What a page shows of a comparison comes from the comparison's own files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic

from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import InputError
from pflcli.evaluation import lineage
from pflcli.evaluation.stored_comparison import (
    MAX_DRAWN,
    Clients,
    Comparison,
    _find_ranking_metric,
    _read_clients,
    read_comparison,
)
from pflcli.plugins.page import runs

GOLDEN = Path(__file__).parents[2] / "golden"


def test_client_scores_are_means_over_seeds(compared):
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


def test_clients_of_two_partitions_are_distinct():
    rows = [("fedavg", seed, client, 5, 0.5 + 0.1 * seed, 0.5, 0.0) for seed in (0, 1) for client in (0, 1)]
    table = pd.DataFrame(rows, columns=["method", "seed", "client", "n_test", "accuracy", "baseline_accuracy", "gain"])
    metrics = {"split": "test", "baseline": "fedavg", "methods": [{"label": "fedavg", "seeds": [0, 1]}]}
    apart = _read_clients(table, metrics, "accuracy", is_one_partition=False)
    assert apart.names == ["client 0, seed 0", "client 1, seed 0", "client 0, seed 1", "client 1, seed 1"]
    together = _read_clients(table, metrics, "accuracy", is_one_partition=True)
    assert together.names == ["client 0", "client 1"]
    np.testing.assert_allclose(together.scores["fedavg"], 0.55)


def test_many_clients_are_thinned_evenly_keeping_the_worst_and_the_best(tmp_path):
    names = [f"c{number}" for number in range(1000)]
    clients = read_comparison(synthetic.write_comparison(tmp_path / "comparison", ["fedavg", "local"], names)).clients
    assert clients.is_thinned
    assert len(clients.drawn) == MAX_DRAWN
    assert {clients.order[0], clients.order[-1]} <= {*clients.drawn}
    steps = np.diff(np.flatnonzero(np.isin(clients.order, clients.drawn)))
    assert set(steps) <= {5, 6, 4}


@pytest.mark.parametrize(("lower_is_better", "order"), [(False, [1, 0, 2]), (True, [2, 0, 1])])
def test_clients_are_ordered_from_worst_to_best(lower_is_better, order):
    baseline = np.asarray([0.5, 0.1, 0.9])
    clients = Clients([*"abc"], [(0, 0), (0, 1), (0, 2)], np.ones(3), {}, baseline, lower_is_better, {})
    assert clients.order.tolist() == order


def test_clients_of_the_same_name_are_kept_apart(tmp_path):
    clients = read_comparison(
        synthetic.write_comparison(tmp_path / "comparison", ["fedavg", "local"], ["A", "A", "B"])
    ).clients
    assert clients.names == ["A (client 0)", "A (client 1)", "B"]


@pytest.mark.parametrize("kind", ["comparison", "evaluation"])
@pytest.mark.parametrize("at", sorted(GOLDEN.glob("schema-*")), ids=lambda path: path.name)
def test_artifacts_of_old_schema_versions_can_be_shown(at, kind):
    comparison = read_comparison(open_artifact(at / kind))
    assert comparison.answer[0].startswith(("No gain", "best", "no ", "all ", *comparison.methods))
    runs.read(comparison, lineage.trace(comparison.artifact))


def test_unknown_metric_is_reported_as_from_a_newer_version():
    with pytest.raises(InputError, match="newer pfl"):
        _find_ranking_metric({"metric": ["fairness"]})


def test_runs_add_curves_holdings_and_relations(compared):
    comparison = read_comparison(open_artifact(compared.path))
    added = runs.read(comparison, lineage.trace(comparison.artifact))
    assert {*added.curves} >= {"fedavg", "panm"}
    assert [point.round for point in added.curves["fedavg"].points] == [1, 2, 3]
    assert added.holdings.counts.sum() > 0
    assert {*added.holdings.clients} >= {*comparison.clients.names}
    assert "panm" in {relation.method for relation in added.relations}
    assert not added.remarks


def test_answer_is_the_stored_conclusion(tmp_path):
    names = [f"c{number}" for number in range(50)]
    comparison = read_comparison(
        synthetic.write_comparison(tmp_path / "comparison", ["fedavg", "local", "knn-per"], names)
    )
    stored = comparison.metrics["conclusion"]
    assert comparison.answer == [stored["sentence"], stored["clients"], stored["cost"]]
    assert comparison.answer[0].startswith("Personalization pays here: knn-per, +")
    assert comparison.answer[-1] == "knn-per sends 200.0 MB in a run of 3.0 s; fedavg sends 0.0 MB in a run of 1.0 s"
    assert comparison.chosen == "knn-per"


def test_client_numbers_belong_to_their_seed():
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    baseline = np.asarray([0.4, 0.3, 0.2, 0.1])
    clients = Clients([*"abcd"], keys, np.ones(4), {}, baseline, lower_is_better=False, tuned={})
    metrics = {"methods": [{"label": "fedavg", "seeds": [0, 1]}]}
    comparison = Comparison(None, metrics, clients)
    assert list(runs._number_clients(comparison, 0).items()) == [(1, 1), (0, 0)]
    assert list(runs._number_clients(comparison, 1).items()) == [(1, 3), (0, 2)]
    assert runs._number_clients(comparison, 7) == runs._number_clients(comparison, 0)
