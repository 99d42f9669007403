"""``compare -n``: seconds, memory and disk from two real rounds of each method, and a warning about the disk."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.comparison import costs
from pflcli.comparison.costs import Cost, Costs
from pflcli.execution import Execution
from pflcli.reporter import NullReporter
from pflcli.settings import Settings
from pflcli.wording import duration

WORDS = {
    "settings": {"model": "logistic", "rounds": 6, "participation": 0.2},
    "methods": ["fedavg", "ditto", "knn-per"],
}


class Listener(NullReporter):
    """Keeps what a command says."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    partition("writers", folder / "p")
    return folder


@pytest.fixture(scope="module")
def planned(writers):
    """The outcome of a dry run, what it said, and the names of all files before and after."""
    before, listener = sorted(writers.rglob("*")), Listener()
    outcome = compare(
        [writers / "p"], writers / "c", references=False, **WORDS, execution=Execution(dry_run=True, reporter=listener)
    )
    return outcome, listener.lines, before, sorted(writers.rglob("*"))


def test_a_dry_run_says_what_is_needed_and_writes_nothing(planned):
    outcome, lines, before, after = planned
    assert before == after
    facts = outcome.summary["needs"]
    assert all(facts[name] > 0 for name in ("seconds", "processor_seconds", "memory_bytes", "disk_bytes"))
    jobs = sum(row.get("processor_seconds", 0.0) for row in outcome.summary["plan"])
    assert facts["processor_seconds"] > jobs + costs._TABLE_SECONDS
    (line,) = (line for line in lines if line.startswith("needs about"))
    assert "of memory" in line
    assert "of disk" in line


def test_the_cost_of_all_rounds_follows_from_the_second_by_hand(tmp_path):
    """10 s, of which the second round took 1 s: ten more rounds take 10 s more."""
    table = "round,seconds\n1,5.0\n2,1.0\n"
    for name, content in {"rounds.csv": table, "predictions.h5": "x" * 100, "state.safetensors": "x" * 50}.items():
        (tmp_path / name).write_text(content)
    made = {"seconds": 10.0, "processor_seconds": 20.0}
    artifact = SimpleNamespace(path=tmp_path, manifest=SimpleNamespace(made=made, summary={"model_bytes": 20}))
    cost = costs._extrapolate(artifact, Settings(rounds=12, participation=0.5), clients=2)
    assert (cost.seconds, cost.processor_seconds) == (20.0, 40.0)
    seen = (1 - 0.5**12) / (1 - 0.5**2)  # as many times more clients were selected once
    assert cost.bytes == pytest.approx(len(table) * 12 / 2 + 100 + 20 + 30 * seen)


def test_the_temporary_folder_is_removed(planned, tmp_path, monkeypatch, writers):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    listening = Execution(dry_run=True, reporter=Listener())
    outcome = compare(
        [writers / "p"], writers / "c4", references=False, **{**WORDS, "methods": ["local"]}, execution=listening
    )
    assert outcome.summary["needs"]["seconds"] > 0
    assert not [*tmp_path.iterdir()]


def test_the_disk_that_is_estimated_is_the_disk_that_is_taken(planned, writers):
    outcome, *_ = planned
    compare([writers / "p"], writers / "c", references=False, **WORDS)
    for row in outcome.summary["plan"]:
        size = sum(path.stat().st_size for path in (writers / "c" / "seed-0" / row["step"]).iterdir())
        # Which clients are ever selected is a draw; of ditto's models of 60 clients there are about 44.
        assert row["disk_bytes"] == pytest.approx(size, rel=0.25 if row["step"] == "ditto" else 0.02, abs=2000), row
    listening = Execution(dry_run=True, reporter=Listener())
    again = compare([writers / "p"], writers / "c", references=False, **WORDS, execution=listening)
    assert "needs" not in again.summary, "what is there already costs nothing"
    more = {**WORDS, "methods": ["fedavg", "ditto", "knn-per", "local"]}
    added = compare([writers / "p"], writers / "c", references=False, **more, execution=listening)
    assert [row["step"] for row in added.summary["plan"] if "disk_bytes" in row] == ["local"]


def test_more_rounds_cost_more_of_the_rounds_alone(planned, writers):
    few, *_ = planned
    words = {**WORDS, "settings": {**WORDS["settings"], "rounds": 100_000}}
    listening = Execution(dry_run=True, reporter=Listener())
    many = compare([writers / "p"], writers / "c5", references=False, **words, execution=listening)
    cost = {name: {row["step"]: row for row in run.summary["plan"]} for name, run in (("few", few), ("many", many))}
    assert cost["many"]["backbone"]["processor_seconds"] > 50 * cost["few"]["backbone"]["processor_seconds"]
    assert cost["many"]["datastore"]["disk_bytes"] == pytest.approx(cost["few"]["datastore"]["disk_bytes"], rel=0.01)


def test_a_method_that_refuses_the_data_has_no_estimate(writers):
    listener = Listener()
    words = {**WORDS, "methods": ["fedavg", "oracle"]}
    compare(
        [writers / "p"], writers / "c2", references=False, **words, execution=Execution(dry_run=True, reporter=listener)
    )
    assert any(line.startswith("oracle will be left out") and "true clusters" in line for line in listener.lines)


def test_a_full_disk_is_said_with_what_to_change(monkeypatch, tmp_path):
    estimated = Costs(
        by_name={"fedavg": Cost(bytes=1e6), "fedham": Cost(bytes=9e9)}, total=Cost(5.0, 9.0, 9e9), memory=6 * 10**9
    )
    monkeypatch.setattr("pflcli.artifacts.disk.free_bytes", lambda folder: 10**9)
    needs, warning = estimated.lines(tmp_path)
    assert needs == "needs about 5 s (9 s of one core), 6.0 GB of memory and 9.0 GB of disk"
    assert "another --out" in warning
    assert "leave out fedham (9.0 GB per seed)" in warning
    monkeypatch.setattr("pflcli.artifacts.disk.free_bytes", lambda folder: 10**12)
    assert len(estimated.lines(tmp_path)) == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59, "59 s"), (150, "2.5 min"), (3000, "50 min"), (9000, "2.5 h"), (360000, "4.2 days")],
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words
