"""``compare -n``: seconds, memory and disk beside the plan, and what to change where they do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.comparison.needs import Needs
from pflcli.commands.partition import partition
from pflcli.estimates import machine
from pflcli.estimates.costs import Cost
from pflcli.estimates.memory import Peak
from pflcli.estimates.rehearsal import Phases
from pflcli.estimates.sampled_executor import Rates
from pflcli.execution import Execution
from pflcli.reporter import NullReporter
from pflcli.wording import duration

WORDS = {
    "settings": {"model": "logistic", "rounds": 2, "participation": 0.2},
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
    folder = tmp_path_factory.mktemp("needs")
    partition("writers", folder / "p")
    return folder


@pytest.fixture(scope="module")
def planned(writers):
    """The outcome of a dry run, what it said, and the names of all files before and after."""
    before, listener = sorted(writers.rglob("*")), Listener()
    outcome = compare([writers / "p"], writers / "c", **WORDS, execution=Execution(dry_run=True, reporter=listener))
    return outcome, listener.lines, before, sorted(writers.rglob("*"))


def test_a_dry_run_says_what_is_needed_and_writes_nothing(planned):
    outcome, lines, before, after = planned
    assert before == after
    facts = outcome.summary["needs"]
    assert all(facts[name] > 0 for name in ("seconds", "processor_seconds", "memory_bytes", "disk_bytes"))
    (line,) = (line for line in lines if line.startswith("needs about"))
    assert "of memory" in line
    assert "of disk" in line


def test_the_disk_that_is_estimated_is_the_disk_that_is_taken(planned, writers):
    outcome, *_ = planned
    compare([writers / "p"], writers / "c", **WORDS)
    written_bytes = 0
    for row in outcome.summary["plan"]:
        size = sum(path.stat().st_size for path in (writers / "c" / "seed-0" / row["step"]).iterdir())
        written_bytes += size
        # Which clients are ever selected is a draw; of ditto's models of 60 clients there are about 22.
        assert row["disk_bytes"] == pytest.approx(size, rel=0.25 if row["step"] == "ditto" else 0.06, abs=4000), row
    assert sum(row["disk_bytes"] for row in outcome.summary["plan"]) == pytest.approx(written_bytes, rel=0.1)
    listening = Execution(dry_run=True, reporter=Listener())
    again = compare([writers / "p"], writers / "c", **WORDS, execution=listening)
    assert "needs" not in again.summary, "what is there already costs nothing"
    more = {**WORDS, "methods": ["fedavg", "ditto", "knn-per", "local"]}
    added = compare([writers / "p"], writers / "c", **more, execution=listening)
    assert [row["step"] for row in added.summary["plan"] if "disk_bytes" in row] == ["local"]


def test_embeddings_take_as_long_as_predicting_every_sample(writers, monkeypatch):
    get = Rates.get

    def get_slow(rates, kind, measure):
        """One second for each sample that is predicted."""
        if kind[0] != "predict":
            return get(rates, kind, measure)
        rates.measured[kind] = (0.0, 1.0)
        return rates.measured[kind]

    monkeypatch.setattr(Rates, "get", get_slow)
    execution = Execution(dry_run=True, reporter=Listener())
    outcome = compare([writers / "p"], writers / "c3", **WORDS, execution=execution)
    (row,) = (row for row in outcome.summary["plan"] if row["step"] == "embeddings")
    samples = open_artifact(writers / "p").manifest.summary["samples"]
    assert row["processor_seconds"] == pytest.approx(samples, rel=0.01)


def test_a_method_that_refuses_the_data_has_no_estimate(writers):
    listener = Listener()
    words = {**WORDS, "methods": ["fedavg", "oracle"]}
    compare([writers / "p"], writers / "c2", **words, execution=Execution(dry_run=True, reporter=listener))
    assert any(line.startswith("oracle") and "true clusters" in line for line in listener.lines)


def test_threads_share_the_training_alone():
    cost = Cost(Phases(parallel=8.0, serial=1.0))
    assert Needs(total=cost, workers=4).seconds == 3
    assert Needs(total=cost, workers=4).processor_seconds == 9


NEEDS = Needs(
    costs={"fedavg": Cost(disk=1e6), "fedham": Cost(disk=9e9)},
    peaks={"fedham": Peak(samples=1e6, models=5e9, state=0.0, answers=0.0, pairs=0.0)},
    total=Cost(Phases(5.0, 0.0), disk=9e9),
    memory=6e9,
)


def test_what_does_not_fit_is_said_with_what_to_change(monkeypatch, tmp_path):
    monkeypatch.setattr("pflcli.estimates.machine.available_memory", lambda: 10**9)
    monkeypatch.setattr("pflcli.artifacts.disk.free_bytes", lambda folder: 10**9)
    needs, memory, disk = NEEDS.lines(tmp_path)
    assert needs == "needs about 5 s, 6.0 GB of memory and 9.0 GB of disk"
    assert memory.startswith("WARNING: 6.0 GB of memory are needed")
    assert "--participation" in memory
    assert "another --out" in disk
    assert "leave out fedham (9.0 GB per seed)" in disk
    monkeypatch.setattr("pflcli.estimates.machine.available_memory", lambda: 10**12)
    monkeypatch.setattr("pflcli.artifacts.disk.free_bytes", lambda folder: 10**12)
    assert len(NEEDS.lines(tmp_path)) == 1


@pytest.mark.parametrize("part", ["samples", "models", "state", "answers", "pairs"])
def test_the_largest_part_of_the_memory_decides_what_to_change(monkeypatch, tmp_path, part):
    monkeypatch.setattr("pflcli.estimates.machine.available_memory", lambda: 0)
    none = Peak(0.0, 0.0, 0.0, 0.0, 0.0)
    needs = Needs(costs=NEEDS.costs, peaks={"panm": replace(none, **{part: 1e12})}, total=NEEDS.total, memory=1e12)
    (line,) = (line for line in needs.lines(tmp_path) if "memory are needed" in line)
    assert "--" in line


def test_available_memory_is_that_of_the_container(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.available_memory() > 0, "a system without either has its physical memory"
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    5000 kB\n")
    assert machine.available_memory() == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert machine.available_memory() == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    assert machine.available_memory() == 2000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59, "59 s"), (150, "2.5 min"), (3000, "50 min"), (9000, "2.5 h"), (360000, "4.2 days")],
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words
