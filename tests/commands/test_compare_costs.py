"""``compare -n``: seconds and disk from two real rounds of each method, and a warning about the disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.core.execution import Execution
from pflcli.core.reporter import NullReporter
from pflcli.core.settings import Settings
from pflcli.core.wording import duration
from pflcli.workflow.comparison import costs
from pflcli.workflow.comparison.costs import Cost, Costs

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
def writers_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    partition("writers", folder / "p")
    return folder


@pytest.fixture(scope="module")
def dry_run_outcome(writers_folder):
    """The outcome of a dry run, what it said, and the names of all files before and after."""
    before, listener = sorted(writers_folder.rglob("*")), Listener()
    outcome = compare(
        [writers_folder / "p"],
        writers_folder / "c",
        references=False,
        **WORDS,
        execution=Execution(dry_run=True, reporter=listener),
    )
    return outcome, listener.lines, before, sorted(writers_folder.rglob("*"))


def test_dry_run_reports_time_and_disk_and_writes_nothing(dry_run_outcome):
    outcome, lines, before, after = dry_run_outcome
    assert before == after
    facts = outcome.summary["needs"]
    assert all(facts[name] > 0 for name in ("seconds", "processor_seconds", "disk_bytes"))
    jobs = sum(row.get("processor_seconds", 0.0) for row in outcome.summary["plan"])
    assert facts["processor_seconds"] > jobs + costs._TABLE_SECONDS
    (line,) = (line for line in lines if line.startswith("needs about"))
    assert "of disk" in line


def test_extrapolate_bytes_matches_a_hand_computed_value(tmp_path, monkeypatch):
    for name, bytes_ in {"rounds.csv": 24, "predictions.h5": 100, "state.safetensors": 50}.items():
        (tmp_path / name).write_bytes(b"x" * bytes_)
    artifact = SimpleNamespace(manifest=SimpleNamespace(summary={"model_bytes": 20}))
    monkeypatch.setattr(costs, "open_artifact", lambda out: artifact)
    stored = costs._extrapolate_bytes(tmp_path, Settings(rounds=12, participation=0.5), clients=2, played=2)
    seen = (1 - 0.5**12) / (1 - 0.5**2)  # as many times more clients were selected once
    assert stored == pytest.approx(24 * 12 / 2 + 100 + 20 + 30 * seen)


def test_cost_estimate_removes_its_temporary_folder(dry_run_outcome, tmp_path, monkeypatch, writers_folder):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    listening = Execution(dry_run=True, reporter=Listener())
    outcome = compare(
        [writers_folder / "p"],
        writers_folder / "c4",
        references=False,
        **{**WORDS, "methods": ["local"]},
        execution=listening,
    )
    assert outcome.summary["needs"]["seconds"] > 0
    assert not [*tmp_path.iterdir()]


def test_estimated_disk_space_matches_the_real_one(dry_run_outcome, writers_folder):
    outcome, *_ = dry_run_outcome
    compare([writers_folder / "p"], writers_folder / "c", references=False, **WORDS)
    for row in outcome.summary["plan"]:
        size = sum(path.stat().st_size for path in (writers_folder / "c" / "seed-0" / row["step"]).iterdir())
        # Which clients are ever selected is a draw; of ditto's models of 60 clients there are about 44.
        assert row["disk_bytes"] == pytest.approx(size, rel=0.25 if row["step"] == "ditto" else 0.02, abs=2000), row
    listening = Execution(dry_run=True, reporter=Listener())
    again = compare([writers_folder / "p"], writers_folder / "c", references=False, **WORDS, execution=listening)
    assert "needs" not in again.summary, "what is there already costs nothing"
    more = {**WORDS, "methods": ["fedavg", "ditto", "knn-per", "local"]}
    added = compare([writers_folder / "p"], writers_folder / "c", references=False, **more, execution=listening)
    assert [row["step"] for row in added.summary["plan"] if "disk_bytes" in row] == ["local"]


def test_more_rounds_raise_only_the_estimate_of_the_rounds(dry_run_outcome, writers_folder):
    few, *_ = dry_run_outcome
    words = {**WORDS, "settings": {**WORDS["settings"], "rounds": 100_000}}
    listening = Execution(dry_run=True, reporter=Listener())
    many = compare([writers_folder / "p"], writers_folder / "c5", references=False, **words, execution=listening)
    cost = {name: {row["step"]: row for row in run.summary["plan"]} for name, run in (("few", few), ("many", many))}
    assert cost["many"]["backbone"]["processor_seconds"] > 50 * cost["few"]["backbone"]["processor_seconds"]
    assert cost["many"]["datastore"]["disk_bytes"] == pytest.approx(cost["few"]["datastore"]["disk_bytes"], rel=0.01)


def test_method_that_refuses_the_data_has_no_estimate(writers_folder):
    listener = Listener()
    words = {**WORDS, "methods": ["fedavg", "oracle"]}
    compare(
        [writers_folder / "p"],
        writers_folder / "c2",
        references=False,
        **words,
        execution=Execution(dry_run=True, reporter=listener),
    )
    assert any(line.startswith("oracle will be left out") and "true clusters" in line for line in listener.lines)


def test_cost_lines_warn_when_the_disk_is_too_small(monkeypatch, tmp_path):
    estimated = Costs(by_name={"fedavg": Cost(2.0, 4.0, 1e6), "fedham": Cost(3.0, 5.0, 9e9)}, total=Cost(5.0, 9.0, 9e9))
    monkeypatch.setattr("pflcli.artifacts.disk.free_bytes", lambda folder: 10**9)
    needs, warning = estimated.lines(tmp_path)
    assert needs == "needs about 5 s (9 s of one core) and 9.0 GB of disk"
    assert "another --out" in warning
    assert "leave out fedham (9.0 GB per seed)" in warning
    monkeypatch.setattr("pflcli.artifacts.disk.free_bytes", lambda folder: 10**12)
    assert len(estimated.lines(tmp_path)) == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59, "59 s"), (150, "2.5 min"), (3000, "50 min"), (9000, "2.5 h"), (360000, "4.2 days")],
)
def test_duration_formats_seconds_with_a_unit(seconds, words):
    assert duration(seconds) == words


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def times(self):
        return self.now, self.now, 0.0, 0.0, self.now


class Trial:
    """A job of two rounds, the second of which takes the given seconds, and five seconds of predictions."""

    name, out, has_rounds = "ditto", Path("ditto"), True

    def __init__(self, clock, round_seconds):
        self.clock, self.round_seconds = clock, round_seconds

    def run(self, execution, *, replaces):
        with execution.reporter.progress("ditto", 2) as advance:
            for seconds in (30.0, self.round_seconds):  # the first one compiles loops
                self.clock.now += seconds
                advance(1, "")
        with execution.reporter.progress("ditto", 20) as advance:
            self.clock.now += 5
            advance(20, "")


@pytest.mark.parametrize("rounds", [2, 60])
def test_cost_is_that_of_the_trial_and_of_as_many_second_rounds_as_are_missing(monkeypatch, rounds):
    clock, notes = Clock(), []
    monkeypatch.setattr(costs, "time", clock)
    monkeypatch.setattr(costs, "os", clock)
    monkeypatch.setattr(costs, "_extrapolate_bytes", lambda *args: 7.0)
    watch = costs._Stopwatch(Trial(clock, 4.0), lambda steps, note: notes.append(note))
    watch.run(Execution())
    seconds = 30 + 4 + 5 + 4 * (rounds - 2)
    cost = watch.extrapolate(Settings(rounds=rounds), clients=10)
    assert (cost.seconds, cost.processor_seconds, cost.bytes) == (pytest.approx(seconds), pytest.approx(2 * seconds), 7)
    assert [note.removeprefix("measuring ditto: ") for note in notes] == [
        "1 of 2 rounds",
        "2 of 2 rounds",
        "20 of 20 clients",
    ]
