"""What a table says of costs is up to the round that each run reports: rounds, MB and seconds."""

from __future__ import annotations

import csv
import itertools
import math

import numpy as np
import pytest

from pflcli import Federation, simulate, table
from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.personalize import personalize
from pflcli.core.simulation import personal_accuracy
from pflcli.evaluation import round_costs
from pflcli.evaluation.round_costs import Link

METHODS = ("fedavg", "fedavg-plus", "ditto")
SETTINGS = {"model": "mlp", "rounds": 6, "participation": 1.0, "eval_every": 1, "lr": 0.5}
LINKS = ("bytes_up", "bytes_down", "bytes_peer")


BEST = 4
SCORES = (0.1, 0.3, 0.2, 0.8, 0.8, 0.5)


@pytest.fixture(scope="module")
def best(small, tmp_path_factory):
    """A comparison whose runs report their best round, the fourth of six."""
    out, settings = tmp_path_factory.mktemp("best"), {**SETTINGS, "report": "best"}
    with pytest.MonkeyPatch.context() as patch:
        own, shared = itertools.cycle(SCORES), itertools.cycle(SCORES)
        patch.setattr(personal_accuracy, "measure_owners", lambda *_: (next(own), math.nan))
        patch.setattr("pflcli.core.federation.run.Run.accuracy", lambda *_: next(shared))
        compare([small.p], out / "c", methods=METHODS, settings=settings, references=False, link="10:50")
    return out / "c"


def read_rows(folder):
    with (folder / "rounds.csv").open(newline="") as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


def by_method(folder):
    return {row["label"]: row["metrics"] for row in read(open_artifact(folder))["methods"]}


@pytest.mark.parametrize("method", METHODS)
def test_rounds_bytes_and_seconds_of_a_table_end_at_the_best_round(best, method):
    run = open_artifact(best / "seed-0" / method)
    rows = read_rows(best / "seed-0" / ("ditto" if method == "ditto" else "backbone"))
    metrics = by_method(best / "comparison")[method]
    assert metrics["reported_round"]["value"] == BEST
    for link in LINKS:
        assert metrics[link]["value"] == sum(row[link] for row in rows if row["round"] <= BEST)
    sent = sum(row[link] for row in rows for link in LINKS if row["round"] <= BEST)
    assert metrics["megabytes"]["value"] == pytest.approx(sent / 1e6)
    assert metrics["megabytes_per_client"]["value"] == pytest.approx(sent / 1e6 / run.manifest.summary["clients"])
    spent = run.manifest.made["seconds"] + run.manifest.made["seconds_inputs"]
    later = sum(row["seconds"] for row in rows if row["round"] > BEST)
    assert metrics["seconds"]["value"] == pytest.approx(spent - later)
    busy = run.manifest.made["processor_seconds"] + run.manifest.made["processor_seconds_inputs"]
    assert metrics["processor_seconds"]["value"] == pytest.approx(busy * (spent - later) / spent)
    source = round_costs.find_rounds(run)
    assert metrics["simulated_seconds"]["value"] == pytest.approx(
        round_costs.simulate_seconds(source, Link(10, 50), BEST)
    )


def test_table_in_every_form_shows_the_reported_round_and_its_costs(best):
    metrics = by_method(best / "comparison")
    numbers = list(csv.DictReader((best / "comparison" / "table.csv").open()))
    lines = (best / "comparison" / "table.md").read_text().splitlines()
    heading = [cell.strip() for cell in lines[0].split("|")]
    for row in numbers:
        assert float(row["reported_round"]) == metrics[row["method"]]["reported_round"]["value"]
        assert float(row["megabytes"]) == pytest.approx(metrics[row["method"]]["megabytes"]["value"], rel=1e-5)
        cells = next(line.split("|") for line in lines if line.startswith(f"| {row['method']} "))
        assert float(cells[heading.index("rounds")]) == float(row["reported_round"])
        assert float(cells[heading.index("MB sent")]) == pytest.approx(float(row["megabytes"]), abs=0.06)


def test_table_in_memory_counts_bytes_up_to_the_best_round(monkeypatch):
    x = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    federation = Federation.from_arrays(x, x[:, 0] > 0, np.arange(80) % 4)
    few = {**SETTINGS, "model": "logistic", "quiet": True}
    fedavg, own = simulate("fedavg", federation, **few), itertools.cycle(SCORES)
    monkeypatch.setattr(personal_accuracy, "measure_owners", lambda *_: (next(own), math.nan))
    result = simulate("ditto", federation, report="best", **few)
    frame = table({"fedavg": fedavg, "ditto": result})
    sent = result.rounds[[*LINKS]].sum(axis=1)
    assert frame.loc["ditto", "megabytes"] == pytest.approx(sent.loc[:BEST].sum() / 1e6, rel=1e-5)
    assert frame.loc["fedavg", "megabytes"] == pytest.approx(sum(fedavg.bytes.values()) / 1e6, rel=1e-5)


def test_runs_that_stop_by_themselves_show_their_own_rounds(small, tmp_path):
    settings = {**SETTINGS, "rounds": 40, "patience": 2}
    compare([small.p], tmp_path / "c", methods=METHODS, settings=settings, references=False)
    metrics = by_method(tmp_path / "c" / "comparison")
    for method in METHODS:
        played = len(read_rows(tmp_path / "c" / "seed-0" / ("ditto" if method == "ditto" else "backbone")))
        assert played < 40
        assert metrics[method]["reported_round"]["value"] == played
        assert open_artifact(tmp_path / "c" / "seed-0" / method).manifest.summary["rounds"] == played


def test_runs_of_a_given_number_of_rounds_have_no_column_of_rounds(small, tmp_path):
    personalize("fedavg", small.p, tmp_path / "m", settings={**SETTINGS, "rounds": 2})
    evaluate([tmp_path / "m"], tmp_path / "e")
    assert "reported_round" not in by_method(tmp_path / "e")["fedavg"]


def test_costs_up_to_the_best_round_of_a_deleted_backbone_are_unknown(best, tmp_path):
    (tmp_path / "m").symlink_to(best / "seed-0" / "fedavg-plus")
    (best / "seed-0" / "backbone").rename(tmp_path / "elsewhere")
    try:
        later = round_costs.measure_later(open_artifact(best / "seed-0" / "fedavg-plus"))
    finally:
        (tmp_path / "elsewhere").rename(best / "seed-0" / "backbone")
    assert all(map(math.isnan, later.values()))
