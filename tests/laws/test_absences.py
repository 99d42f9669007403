"""Clients that drop out or diverge: what a run records. What becomes of the others is a law of every method."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import worlds
from helpers import ONE_OF_EACH_KIND
from pflcli.core import methods, registry
from pflcli.core.errors import ComputationError
from pflcli.core.federation.run import Run
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation import absences, callbacks, loop
from pflcli.plugins.checks.laws.federations import drop_measurements

METHODS = (*ONE_OF_EACH_KIND, "knn-per-plus", "fedattn", "fedham", "fedhealth", "fedproto")
TRAINED = [name for name in METHODS if methods.load(name).has_rounds]
RECORDING = [name for name in registry.names("methods") if methods.load(name).RECORDS]
BAD = 6
"""The client whose training diverges: it is drawn for the first and the last of three rounds."""


def make_training_overflow(run, *clients):
    """Let clients hold training samples under which any training overflows."""
    for client in clients:
        run.federation.x[run.federation.rows(client, "train")] = 3e38


def play(method, run, spoil=lambda t: None):
    """The state after all rounds, and the rows of rounds.csv; ``spoil`` is called before setup (-1) and each round."""
    code = methods.load(method)
    spoil(-1)
    progress = loop.set_up(run, method, code)
    state, rows = progress.state, progress.before
    if hasattr(code, "train_round"):
        for t in range(run.settings.rounds):
            spoil(t)
            state, row = loop.play_round(run, method, code, state, t)
            rows.append(row)
    return state, rows


def predict_by_split(method, run, state):
    """The clients' predictions by split, and flags of what went wrong with them."""
    with run.personalizing():
        predictor = methods.load(method).personalize(run, state, run.clients)
        parts = {split: predictor.answer(split) for split in predictor.splits}
        return absences.replace_nonfinite(run, run.clients, parts)


@pytest.fixture
def drop_out_from(monkeypatch):
    """Let a client drop out of all rounds from ``first`` on."""

    def silent(client, first):
        cohort = Run.cohort

        def drawn(run, t):
            cohort(run, t)
            if t >= first:
                selected = run.attendance.selected
                run.attendance.dropped = selected[selected == client]
            return run.attendance.present

        monkeypatch.setattr(Run, "cohort", drawn)

    return silent


@pytest.mark.parametrize("method", METHODS)
def test_run_counts_a_client_when_it_diverges(method, drop_out_from):
    """All others end as if it had dropped out, and so does what it had before."""
    first = -1 if method == "fedhealth" else 1  # whose cloud model diverges before the rounds
    runs = [worlds.run(method), worlds.run(method)]
    state, rows = play(method, runs[0], lambda t: make_training_overflow(runs[0], BAD) if t == first else None)
    left_out = {row["round"]: row["diverged"] for row in rows if row["diverged"]}
    assert left_out == ({} if method not in TRAINED else {0: [BAD], 1: [BAD], 3: [BAD]} if first < 0 else {3: [BAD]})
    if method not in TRAINED:
        make_training_overflow(runs[0], BAD)
    by_split, befell = predict_by_split(method, runs[0], state)
    for parts in by_split.values():
        assert np.isfinite(parts["p"]).all()
        np.testing.assert_allclose(parts["p"].sum(axis=1), 1, atol=1e-5)
    if method in ("local", "fedavg-plus", "knn-per-plus"):
        assert absences.name_flagged(befell, [*"abcdefg"])["diverged_personalizing"] == ["g"]
    drop_out_from(BAD, first)
    expected, dropped = play(method, runs[1], lambda t: make_training_overflow(runs[1], BAD) if t == first else None)
    if method not in TRAINED:
        return
    assert {row["round"]: [BAD] for row in dropped if row["dropped"]} == {r: c for r, c in left_out.items() if r > 0}
    assert worlds.same(*(drop_measurements(one) for one in (state, expected)))
    for row, other in zip(rows, dropped, strict=True):
        assert (row["bytes_up"], row["bytes_peer"]) == (other["bytes_up"], other["bytes_peer"])
        assert row["bytes_down"] == other["bytes_down"] or method in ("fedattn", "fedham")
    again, _ = predict_by_split(method, runs[1], expected)
    for split, parts in by_split.items():
        np.testing.assert_array_equal(parts["p"], again[split]["p"])


@pytest.mark.parametrize("method", TRAINED)
def test_run_ends_with_the_reason_when_all_clients_diverge(method):
    with pytest.raises(ComputationError, match="became non-finite") as error:
        play(method, worlds.run(method, lr=1e37))
    assert "--lr" in error.value.fix[0]
    if method != "fedhealth":
        assert error.value.message.startswith(f"{method}, round 1: the parameters of all clients that trained")


@pytest.mark.parametrize("method", TRAINED)
def test_round_records_no_uploads_when_all_clients_drop_out(method):
    run = worlds.run(method, rounds=2, dropout=1 - 1e-9)
    begun = methods.load(method).setup(worlds.run(method, rounds=2))
    state, rows = play(method, run)
    assert worlds.same(state, begun)
    assert all(not len(table.written) for table in state.values() if isinstance(table, ModelTable))
    for row in rows[-2:]:
        assert (row["clients"], row["dropped"], row["bytes_up"], row["bytes_peer"]) == (0, 3, 0, 0)
        # Before anybody answers, FedProto has no prototypes to send.
        assert (row["bytes_down"] > 0) == (run.kind == "server" and method != "fedproto")
    by_split, _ = predict_by_split(method, run, state)
    assert np.isfinite(by_split["test"]["p"]).all()
    assert callbacks.describe_last(rows).startswith("no client uploaded")
    facts = absences.summarize(rows, [*"abcdefg"])
    assert facts == {"dropped": 6, "rounds_unanswered": 2}
    assert absences.describe(facts) == ["clients dropped out 6 times; 2 rounds had no upload"]


@pytest.mark.parametrize("method", RECORDING)
def test_round_without_uploads_keeps_recorded_neighbours_and_measures_no_similarity(method):
    run, code = worlds.run(method, rounds=4, options={"fedham": {"warmup": 1}}.get(method)), methods.load(method)
    before = worlds.play(method, run, last=3)
    records = {name: before[name] for name in code.RECORDS}
    run.settings = replace(run.settings, dropout=1 - 1e-9)
    state, row = loop.play_round(run, method, code, before, 3)
    assert row["dropped"] == 3
    if "cluster" in records:
        assert worlds.same(state["cluster"], records["cluster"])
    if "graph" in records:
        assert len(state["graph"]) == len(records["graph"]) + 1
        assert worlds.same(state["graph"][:-1], records["graph"])
        assert worlds.same(state["graph"][-1], records["graph"][-1])
    for name, value in (("attention", 0.0), ("history", float("nan"))):
        for key, values in records.get(name, {}).items():
            extended = state[name][key]
            assert len(extended) == len(values) + (len(values) > 0)
            np.testing.assert_array_equal(extended[: len(values)], values)
            np.testing.assert_array_equal(extended[len(values) :], np.full_like(extended[len(values) :], value))
    if "attention" in records:
        assert all(len(values) for values in records["attention"].values())


def test_command_names_the_client_when_it_diverges(pfl, tmp_path):
    """One client's feature overflows: the run goes on, and table, manifest and words name the client."""
    draw = np.random.default_rng(0)
    lines = ["site,a,b,kind"]
    for number in range(60):
        b = 3e38 * (-1) ** number if number % 4 == 3 else draw.normal()
        lines.append(f"{'ABCD'[number % 4]},{draw.normal()},{b},{number % 3}")
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    pfl("import", tmp_path / "d.csv", "--client", "site", "--label", "kind", "-o", tmp_path / "d")
    pfl("partition", tmp_path / "d", "-o", tmp_path / "p")
    words = ("--rounds", 3, "--participation", 1, "--dropout", 0.3)
    ran = pfl("personalize", "ditto", tmp_path / "p", "-o", tmp_path / "m", *words)
    assert ran.code == 0
    rounds = re.search(r"became non-finite: client D \((\d) rounds\)", ran.err)[1]
    facts = json.loads(pfl("show", tmp_path / "m", "--json").out)
    assert facts["summary"]["diverged"] == {"D": int(rounds)}
    assert facts["request"]["settings"]["dropout"] == 0.3
    with (tmp_path / "m" / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["diverged"]) for row in rows) == int(rounds)
    assert sum(int(row["dropped"]) for row in rows) == facts["summary"]["dropped"] > 0
