"""Every metric is declared once, in the catalogue that files, tables and documents follow."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_metrics import store

from pflcli.commands.evaluate import evaluate
from pflcli.core import scores
from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import BY_SAMPLES, Metric

DOCUMENTED = Path(__file__).parents[3] / "docs" / "artifacts" / "metrics.csv"


@pytest.fixture
def add_two_metrics(monkeypatch):
    """A score of each client, weighted by samples, and the best client's, in the catalogue for one test."""
    more = [
        Metric(
            "sure", "fraction", BY_SAMPLES, "sure", percent=True,
            per_sample=lambda p, y: p.max(axis=1), over=scores.weighted_mean,
        ),
        Metric("surest", "fraction", "best client", "surest", score="sure", over=lambda values, n: np.nanmax(values)),
    ]  # fmt: skip
    monkeypatch.setattr(catalogue, "METRICS", {**catalogue.METRICS, **{metric.name: metric for metric in more}})


@pytest.mark.usefixtures("add_two_metrics")
def test_metric_added_to_the_catalogue_appears_in_all_outputs(tmp_path):
    evaluate([store(tmp_path / "p", "mine", [0, 1, 0, 1, 1, 0])], tmp_path / "e")
    (row,) = json.loads((tmp_path / "e" / "metrics.json").read_text())["methods"]
    assert row["metrics"]["sure"]["value"] == pytest.approx(0.9)
    assert (row["metrics"]["surest"]["weighting"], row["metrics"]["surest"]["n"]) == ("best client", 2)
    heading, _, cells = ((tmp_path / "e" / "table.md").read_text().splitlines())[:3]
    assert dict(zip(*(re.split(r" *\| *", line) for line in (heading, cells)), strict=True))["sure %"] == "90.0"
    rows = list(csv.DictReader((tmp_path / "e" / "clients.csv").open()))
    assert [row["sure"] for row in rows] == ["0.9", "", "0.9"]
    assert "surest" not in rows[0]
    (row,) = csv.DictReader((tmp_path / "e" / "table.csv").open())
    assert (row["sure"], row["surest"]) == ("0.9", "0.9")


def test_documented_metrics_equal_the_catalogue():
    with DOCUMENTED.open(encoding="utf-8", newline="") as file:
        on_page = {row["metric"]: row["unit"] for row in csv.DictReader(file)}
    parts = {name.removeprefix("{metric}") for name in on_page if name.startswith("{metric}")}
    listed = {
        name: metric.unit
        for name, metric in catalogue.METRICS.items()
        if name != "validation_accuracy"  # of a sweep alone
        and not (metric.optional and metric.score and name.removeprefix(metric.score) in parts)
    }
    assert {name: unit for name, unit in on_page.items() if "{" not in name} == listed


def test_columns_have_unique_headings_and_priorities():
    columns = [catalogue.METRICS[name] for name in catalogue.columns("evaluation")]
    assert len({metric.heading for metric in columns}) == len(columns)
    numbers = [metric.gives_way for metric in columns if metric.gives_way is not None]
    assert len({*numbers}) == len(numbers)
    assert all(metric.score in catalogue.METRICS for metric in catalogue.METRICS.values() if metric.score)


def test_record_of_a_metric_has_value_unit_weighting_and_count():
    record = catalogue.METRICS["rounds_to_target"].record([2.0, float("nan"), 4.0], 2, of=3)
    assert record.pop("std_over_seeds") == pytest.approx(2**0.5)
    assert record == {"value": 3.0, "unit": "rounds", "weighting": "seeds that reached the target", "n": 2, "of": 3}
    assert list(catalogue.METRICS["gain"].record([1.0], 1, p=0.5)) == [
        "value", "unit", "weighting", "n", "std_over_seeds", "p",
    ]  # fmt: skip
    assert catalogue.METRICS["last_rounds_accuracy"].record([1.0], 5, "5")["weighting"].endswith("last 5 rounds")


def test_brier_score_and_log_loss_are_not_printed_in_percent():
    """A Brier score is a squared distance between distributions: up to 2, and better the lower it is."""
    for name in ("brier_score", "log_loss"):
        metric = catalogue.METRICS[name]
        assert (metric.percent, metric.lower_is_better, metric.digits) == (False, True, 3)
