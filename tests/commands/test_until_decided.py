"""``pfl compare --until-decided``: seeds are added until a best method is shown, at levels of alpha spending."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
from scipy.stats import t as student

from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.core.errors import UsageError
from pflcli.evaluation.metrics.looks import Looks
from pflcli.workflow.comparison import until_decided

FEW = {"model": "logistic", "rounds": 1, "participation": 1.0}
TIE = ["fedavg", "fedprox", "local"]
"""FedProx without its term is FedAvg, so that no single method is the best unless it is local."""


def run(folder, most=4, methods=TIE, out="c", **more):
    options = {"fedprox": {"mu": 0}} if "fedprox" in methods else {}
    return compare(
        [folder / "p"], folder / out, methods=methods, settings=FEW, options=options, references=False,
        until_decided=most, threads=1, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undecided(small, tmp_path_factory):
    """A folder with a partition and the comparison ``c``, whose looks ended with four seeds."""
    at = tmp_path_factory.mktemp("until")
    shutil.copytree(small.p, at / "p")
    run(at)
    return at


def metrics(folder):
    return json.loads((folder / "comparison" / "metrics.json").read_text())


def test_seeds_are_added_up_to_the_most_if_two_methods_are_equal(undecided):
    assert open_artifact(undecided / "c" / "comparison").manifest.request["seeds"] == [0, 1, 2, 3]


def test_intervals_have_the_level_of_the_last_look(undecided):
    found = metrics(undecided / "c")
    assert found["looks"] == {"first": 3, "most": 4}
    assert found["level"] == pytest.approx(Looks(3, 4).level(4))
    [gain] = [row["metrics"]["gain"] for row in found["methods"] if row["label"] == "local"]
    risk = (1 - found["level"]) / len(found["conclusion"]["judged"])
    reach = gain["standard_error"] * student.ppf(1 - risk / 2, gain["degrees_of_freedom"])
    assert gain["interval"] == pytest.approx([gain["value"] - reach, gain["value"] + reach])


def test_the_table_says_at_which_level_it_looked(undecided):
    notes = (undecided / "c" / "comparison" / "table.md").read_text()
    assert "a look after 4 of at most 4 seeds" in notes
    assert f"the level of this look, {100 * Looks(3, 4).level(4):.6g} % (alpha spending)" in notes


def test_a_repetition_makes_nothing_and_keeps_the_table(undecided):
    before = open_artifact(undecided / "c" / "comparison").manifest.fingerprint
    assert run(undecided).decision == "up to date"
    command = open_artifact(undecided / "c" / "comparison").manifest.made["command"]
    assert "--until-decided 4" in command
    assert "--seeds 0,1,2 " in f"{command} "
    assert open_artifact(undecided / "c" / "comparison").manifest.fingerprint == before


def test_another_most_is_refused_as_earlier_looks_depend_on_it(undecided):
    with pytest.raises(UsageError, match="made with --until-decided 4"):
        run(undecided, most=6)


@pytest.mark.parametrize("most", [None, 3, 4, 5])
def test_more_seeds_than_the_looks_allow_are_refused_with_another_folder(undecided, most):
    with pytest.raises(UsageError, match="made with --until-decided 4") as raised:
        run(undecided, most=most, seeds=[7])
    assert raised.value.fix[0].endswith("another folder for --out")


@pytest.mark.parametrize(
    ("baseline", "better", "not_worse", "decided"),
    [("b", ["a"], [], True), ("b", [], ["b"], False), ("global", [], [], False), ("global", ["a"], [], True)],
)
def test_a_comparison_is_decided_with_its_conclusion(monkeypatch, baseline, better, not_worse, decided):
    """The global model has no row, and so no mark, but the best method has to gain over it."""
    found = {
        "methods": [], "baseline": baseline, "marks": {"accuracy": {"best": ["a"], "not_worse": not_worse}},
        "conclusion": {"sentence": "", "judged": ["a"], "better": better},
    }  # fmt: skip
    monkeypatch.setattr(until_decided, "open_artifact", lambda path: None)
    monkeypatch.setattr(until_decided.evaluation, "read", lambda artifact: found)
    assert until_decided.look(SimpleNamespace(path="c"))[0] == decided


def test_a_dry_run_previews_all_seeds(undecided):
    outcome = run(undecided, out="new", dry_run=True, seeds=[7])
    assert not (undecided / "new").exists()
    paths = {job["path"].split("/")[0] for job in outcome.summary["jobs"]}
    assert paths == {"seed-7", "seed-8", "seed-9", "seed-10"}


def test_looks_end_when_a_method_is_shown_to_be_the_best(undecided, monkeypatch):
    monkeypatch.setattr(until_decided, "look", lambda outcome: (len(outcome.request["seeds"]) == 3, ""))
    outcome = run(undecided, most=6, methods=["fedavg", "local"], out="d", seeds=[1, 4])
    assert outcome.request["seeds"] == [1, 4, 5]
    assert outcome.request["looks"] == [2, 6]


def test_one_method_leaves_nothing_to_decide(undecided):
    assert run(undecided, methods=["fedavg"], out="one").request["seeds"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seeds", "0,1,2,3,4", "--until-decided", 4), "--until-decided 4 leaves no seed to add: there are 5"),
        (("--until-decided", 4, "--only", "seed-0/local"), "--until-decided looks at the whole table"),
        (("--until-decided", 4, "--plan", "make"), "--plan cannot be combined with --until-decided"),
    ],
)
def test_options_that_leave_nothing_to_look_at_are_one_clear_error(undecided, tmp_path, pfl, options, message):
    ran = pfl("compare", undecided / "p", "-o", tmp_path / "x", "--methods", "fedavg,local", *options)
    assert ran.code == 2
    assert message in ran.err
    assert not (tmp_path / "x").exists()


def test_several_partitions_are_refused(undecided, tmp_path, pfl):
    ran = pfl("compare", undecided / "p", undecided / "p", "-o", tmp_path / "x", "--until-decided", 4)
    assert (ran.code, "cannot draw further partitions" in ran.err) == (2, True)


def test_a_look_before_the_last_has_its_own_level(undecided, monkeypatch):
    monkeypatch.setattr(until_decided, "look", lambda outcome: (len(outcome.request["seeds"]) == 3, ""))
    run(undecided, most=4, methods=["fedavg", "local"], out="early")
    found = metrics(undecided / "early")
    assert found["level"] == pytest.approx(Looks(3, 4).level(3))
    assert found["level"] != pytest.approx(Looks(3, 4).level(4), abs=1e-4)
