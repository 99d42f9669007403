"""Rounds, seconds and MB to a target accuracy: by hand, over seeds, from whose rounds, and only when asked for."""

from __future__ import annotations

import csv
import json
import math
import shutil

import pytest

from pflcli.artifacts.kinds.evaluation import read
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core.errors import ConflictError, UsageError
from pflcli.core.execution import Execution
from pflcli.evaluation import round_costs
from pflcli.evaluation.presentation import tables

HEAD = "round,clients,lr,loss,validation_accuracy,personal_accuracy,bytes_up,bytes_down,bytes_peer,seconds\n"
OWN = HEAD + "1,2,0.1,1,0.9,,1000000,2000000,0,1.5\n2,2,0.1,1,,0.7,1000000,2000000,500000,2\n3,2,0.1,1,,0.8,0,0,9,4\n"
LATER = OWN.replace("2,2,0.1,1,,0.7", "2,2,0.1,1,,0.1")
SHARED = OWN.replace("0.7", "").replace("0.8", "")
BEFORE = OWN.replace(HEAD, HEAD + "0,0,,,,,3000000,1000000,0,2.5\n")
FEW = {"model": "mlp", "rounds": 4, "participation": 0.5, "eval_every": 2}


def write_predictions(out, rounds, seed=0, method="m", **more) -> Artifact:
    summary = {"rounds": 3, "clients": 4, "participants": 4, "model_bytes": 100_000, **more}
    draft = ArtifactSpec(
        "predictions", {"method": method, "options": {}, "settings": {}, "seed": seed, "x": rounds}, ()
    )
    with ArtifactWriter(out, draft).prepare() as work:
        work.write("rounds.csv", rounds.encode())
        work.commit(summary, {})
    return open_artifact(out)


@pytest.mark.parametrize(
    ("rounds", "target", "expected"),
    [
        (OWN, 0.7, (2, 3.5, 6.5, 8.125)),  # its own models count, though the global one is better
        (OWN, 0.71, (3, 7.5, 6.500009, 8.12501125)),
        (OWN, 0.81, None),
        (SHARED, 0.81, (1, 1.5, 3.0, 3.75)),  # a column that is empty says nothing
        (HEAD, 0.1, None),
        (BEFORE, 0.7, (2, 6, 10.5, 13.125)),  # what comes before the first round counts and is no round
    ],
)
def test_measure_time_to_target_matches_hand_computed_values(tmp_path, rounds, target, expected):
    actual = round_costs.measure_time_to_target(write_predictions(tmp_path / "a", rounds), target)
    assert (actual and tuple(actual.values())) == (expected and pytest.approx(expected))
    assert not actual or list(actual) == list(round_costs.TARGET_METRICS)


def test_exchanges_to_target_count_models_per_participant(tmp_path):
    actual = round_costs.measure_time_to_target(write_predictions(tmp_path / "a", OWN, participants=2), 0.7)
    assert actual["exchanges_to_target"] == pytest.approx(2 * 8.125)


def test_time_to_target_ignores_global_accuracy_of_methods_that_adapt_later(tmp_path):
    assert (
        round_costs.measure_time_to_target(write_predictions(tmp_path / "fedbabu", SHARED, method="fedbabu"), 0.81)
        is None
    )
    assert (
        round_costs.measure_time_to_target(write_predictions(tmp_path / "fedavg", SHARED, method="fedavg"), 0.81)[
            "rounds_to_target"
        ]
        == 1
    )
    actual = round_costs.measure_time_to_target(write_predictions(tmp_path / "measured", OWN, method="fedbabu"), 0.71)
    assert actual["rounds_to_target"] == 3


def test_time_to_target_leaves_out_and_counts_seeds_that_miss_it(tmp_path):
    runs = [write_predictions(tmp_path / str(i), text, i) for i, text in enumerate((OWN, LATER, HEAD))]
    metrics = round_costs.summarize_time_to_target(runs, 0.7)
    rounds = metrics["rounds_to_target"]
    assert (rounds["value"], rounds["std_over_seeds"], rounds["n"], rounds["of"]) == (
        2.5,
        pytest.approx(0.5**0.5),
        2,
        3,
    )
    assert metrics["seconds_to_target"]["value"] == pytest.approx((3.5 + 7.5) / 2)
    table = {"target": 0.7, "methods": [{"label": "m", "seeds": [0, 1, 2], "metrics": metrics}]}
    heading, ((_, _, cell, *_),), _ = tables.build(table)
    assert heading[2:] == ["rounds to 70 %", "seconds to 70 %", "MB to 70 %", "models to 70 %"]
    assert cell == "2.5 ± 0.7 (2 of 3)"
    columns, (numbers,) = tables.list_numbers(table)
    row = dict(zip(columns, numbers, strict=True))
    assert (row["rounds_to_target"], row["seeds_to_target"]) == (2.5, 2)
    never = round_costs.summarize_time_to_target(runs[:1], 0.99)
    assert all(math.isnan(metric["value"]) and metric["n"] == 0 for metric in never.values())
    assert tables.build({**table, "methods": [{"label": "m", "seeds": [0], "metrics": never}]})[1][0][2:] == ["-"] * 4


@pytest.fixture(scope="module")
def runs_folder(small, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    train_global(small.p, root / "b", settings=FEW)
    for method in ("fedavg", "fedavg-plus", "local", "ditto"):
        personalize(method, root / "b", root / method, settings=FEW)
    return root


def read_known_values(folder, column):
    with (folder / "rounds.csv").open(newline="") as file:
        return [(int(row["round"]), float(row[column])) for row in csv.DictReader(file) if row[column]]


def test_time_to_target_uses_the_rounds_of_the_backbone_or_the_method(runs_folder):
    """Those of the backbone for methods that go on from it, and none for one that trains alone beside it."""
    target = read_known_values(runs_folder / "b", "validation_accuracy")[-1][1]
    first = next(
        number for number, value in read_known_values(runs_folder / "b", "validation_accuracy") if value >= target
    )
    assert not (runs_folder / "fedavg" / "rounds.csv").exists()
    assert (
        round_costs.measure_time_to_target(open_artifact(runs_folder / "fedavg"), target)["rounds_to_target"] == first
    )
    # In the rounds of the backbone nobody was fine-tuned, so nobody knows when that would have reached it.
    assert round_costs.measure_time_to_target(open_artifact(runs_folder / "fedavg-plus"), 1e-9) is None
    assert round_costs.measure_time_to_target(open_artifact(runs_folder / "local"), 1e-9) is None
    own = read_known_values(runs_folder / "ditto", "personal_accuracy")
    assert round_costs.measure_time_to_target(open_artifact(runs_folder / "ditto"), own[-1][1])[
        "rounds_to_target"
    ] == next(number for number, value in own if value >= own[-1][1])
    assert {number for number, _ in own} == {2, 4}


def test_time_to_target_uses_measured_rounds_of_an_adapting_backbone(small, tmp_path):
    train_global(small.p, tmp_path / "b", method="fedbabu", settings={**FEW, "personal_every": 2})
    personalize("fedbabu", tmp_path / "b", tmp_path / "m")
    assert not (tmp_path / "m" / "rounds.csv").exists()
    own = read_known_values(tmp_path / "b", "personal_accuracy")
    assert [number for number, _ in own] == [2, 4]
    first = next(number for number, value in own if value >= own[-1][1])
    assert round_costs.measure_time_to_target(open_artifact(tmp_path / "m"), own[-1][1])["rounds_to_target"] == first


def test_evaluate_reports_time_to_target_only_when_requested(pfl, runs_folder, tmp_path):
    evaluate([runs_folder / "fedavg", runs_folder / "local"], tmp_path / "plain")
    words = ("evaluate", runs_folder / "fedavg", runs_folder / "local", "-o", tmp_path / "asked", "--target", "0.01")
    assert pfl(*words).code == 0
    plain, targeted = (read(open_artifact(tmp_path / name)) for name in ("plain", "asked"))
    assert "target" not in plain
    assert "target" not in open_artifact(tmp_path / "plain").manifest.request
    evaluate([runs_folder / "fedavg", runs_folder / "local"], tmp_path / "linked", link="10:50")
    requests = [open_artifact(tmp_path / name).manifest.request for name in ("plain", "linked")]
    assert [request.get("link") for request in requests] == [None, "10:50"]
    assert "link" not in requests[0]
    assert not {name for method in plain["methods"] for name in method["metrics"]} & set(round_costs.TARGET_METRICS)
    assert targeted["target"] == 0.01
    fedavg, local = (method["metrics"] for method in targeted["methods"])
    assert (fedavg["rounds_to_target"]["value"], fedavg["rounds_to_target"]["n"]) == (2, 1)
    assert (
        json.loads((tmp_path / "asked" / "metrics.json").read_text())["methods"][1]["metrics"]["rounds_to_target"][
            "value"
        ]
        is None
    )
    assert local["rounds_to_target"]["of"] == 1
    # Of FedAvg a round is as many models there and back as clients take part; 0.5 of those with training samples.
    (cohort,) = {int(row["clients"]) for row in csv.DictReader((runs_folder / "b" / "rounds.csv").open())}
    share = cohort / open_artifact(runs_folder / "fedavg").manifest.summary["participants"]
    assert fedavg["exchanges"]["value"] == pytest.approx(4 * share)
    assert fedavg["exchanges_to_target"]["value"] == pytest.approx(2 * share)
    assert local["exchanges"]["value"] == 0
    assert "rounds to 1 %" in (tmp_path / "asked" / "table.md").read_text()
    assert "to 1 %" not in (tmp_path / "plain" / "table.md").read_text()
    for name in ("clients.csv", "accuracy.png"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "asked" / name).read_bytes()


@pytest.mark.parametrize("target", ["0", "1.5", "90", "nan", "-0.1"])
def test_target_outside_0_to_1_is_refused(pfl, runs_folder, small, tmp_path, target):
    for words in (("evaluate", runs_folder / "fedavg"), ("compare", small.p)):
        ran = pfl(*words, "-o", tmp_path / "x", "--target", target)
        assert ran.code == 2
        assert f"--target {target} is not an accuracy" in ran.err
        assert "--target 0.9" in ran.err


def test_target_can_be_added_to_a_comparison(small, tmp_path):
    """It trains nothing anew, and a table with another target is another request."""
    shutil.copytree(small.p, tmp_path / "p")

    def compared(target, **kwargs):
        return compare(
            [tmp_path / "p"],
            tmp_path / "c",
            methods=["gossip"],
            settings=FEW,
            target=target,
            execution=Execution(**kwargs),
            references=False,
        )

    compared(None)
    assert "rounds_to_target" not in (tmp_path / "c" / "comparison" / "table.csv").read_text()
    before = (tmp_path / "c" / "seed-0" / "gossip" / "manifest.json").stat().st_mtime_ns
    assert compared(0.01).decision == "replace"
    (row,) = csv.DictReader((tmp_path / "c" / "comparison" / "table.csv").read_text().splitlines())
    assert row["rounds_to_target"] == "2"
    assert compared(0.01).decision == "up to date"
    with pytest.raises(ConflictError):
        compared(0.02)
    compared(0.02, force=True)
    assert (tmp_path / "c" / "seed-0" / "gossip" / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="--target 2 is not"):
        compared(2)


def test_simulated_seconds_match_hand_computed_values(tmp_path):
    """Two clients a round, 1 Mbit/s up and 4 down: 0.5 MB up and 1 MB down each are 4 and 2 seconds."""
    run, link = write_predictions(tmp_path / "a", OWN), round_costs.Link.parse("1:4")
    first = 1.5 / 2 + 4 + 2
    # What peers send, a quarter of a MB each, counts up and down.
    second = 2 / 2 + 4 + 2 + 2 + 0.5
    third = 4 / 2 + 8 * 9e-6 / 2 * 1.25
    assert round_costs.simulate_seconds(run, link) == pytest.approx(first + second + third)
    assert round_costs.simulate_seconds(run, link, 2) == pytest.approx(first + second)
    metrics = round_costs.summarize_simulated_time([run, write_predictions(tmp_path / "b", LATER, 1)], link, 0.7)
    assert metrics["simulated_seconds"]["value"] == pytest.approx(first + second + third)
    to_target = metrics["simulated_seconds_to_target"]
    assert to_target["value"] == pytest.approx((first + second + first + second + third) / 2)
    assert "links of 1:4 Mbit/s" in to_target["weighting"]
    assert round_costs.summarize_simulated_time([run], link, 0.99)["simulated_seconds_to_target"]["n"] == 0
    assert "simulated_seconds_to_target" not in round_costs.summarize_simulated_time([run], link, None)


def test_simulated_seconds_do_not_depend_on_local_workers():
    """Four workers train two clients at once: each client took the whole time."""
    row = next(csv.DictReader(OWN.splitlines()))
    assert [round_costs.compute_seconds(row, n) for n in (1, 2, 4)] == pytest.approx([0.75, 1.5, 1.5])
    assert round_costs.Link.parse("1:4").transfer(row) == pytest.approx(6)


def test_rounds_of_a_method_that_sends_after_those_of_its_backbone_are_both(tmp_path):
    """As of gaussian-head, which sends counts and means of classes once: row 0 is its own, the rounds are not."""
    draft = ArtifactSpec("backbone", {"method": "fedavg", "options": {}, "settings": {}, "seed": 0}, ())
    with ArtifactWriter(tmp_path / "b", draft).prepare() as work:
        work.write("rounds.csv", SHARED.encode())
        work.commit({"rounds": 3}, {})
    trained = open_artifact(tmp_path / "b")
    own = HEAD + "0,2,,,,,3000000,1000000,0,2.5\n"
    draft = ArtifactSpec(
        "predictions",
        {"method": "gaussian-head", "options": {}, "settings": {}, "seed": 0},
        (trained.as_input("backbone", tmp_path / "m"),),
    )
    with ArtifactWriter(tmp_path / "m", draft).prepare() as work:
        work.write("rounds.csv", own.encode())
        work.commit({"rounds": 3, "clients": 4, "participants": 4, "model_bytes": 100_000}, {})
    run, link = open_artifact(tmp_path / "m"), round_costs.Link.parse("1:4")
    assert round_costs.find_rounds(run).path == trained.path
    assert round_costs.reported_round(run) == 3
    assert round_costs.read_rounds(run)[0] == "validation_accuracy"
    both = round_costs.simulate_seconds(trained, link) + 2.5 + 12 + 1  # 1.5 MB up and 0.5 MB down for each of two
    assert round_costs.simulate_seconds(run, link) == pytest.approx(both)


@pytest.mark.parametrize("text", ["10", "10:0", "-1:5", "a:b", "1:2:3", "inf:1", "nan:1"])
def test_link_parse_refuses_invalid_speeds(text):
    with pytest.raises(UsageError, match="is not two speeds in Mbit/s"):
        round_costs.Link.parse(text)


def test_evaluate_simulates_links_only_when_requested(small, tmp_path, pfl):
    ran = pfl("evaluate", small.fedavg, small.knn, "-o", tmp_path / "ev", "--link", "10:50", "--target", "0.01")
    assert ran.code == 0
    assert "seconds simulated at 10:50 Mbit/s" in (tmp_path / "ev" / "table.md").read_text()
    assert "seconds simulated to 1 %" in (tmp_path / "ev" / "table.md").read_text()
    metrics = read(open_artifact(tmp_path / "ev"))
    assert metrics["link"] == "10:50"
    assert open_artifact(tmp_path / "ev").manifest.request["link"] == "10:50"
    # The rounds are those of the backbone for both; slower links take longer.
    values = [method["metrics"]["simulated_seconds"]["value"] for method in metrics["methods"]]
    assert values[0] == values[1] > 0
    pfl("evaluate", small.fedavg, small.knn, "-o", tmp_path / "slow", "--link", "1:5")
    slow = read(open_artifact(tmp_path / "slow"))["methods"][0]["metrics"]
    assert slow["simulated_seconds"]["value"] > values[0]
    assert pfl("evaluate", small.fedavg, "-o", tmp_path / "x", "--link", "fast").code == 2
