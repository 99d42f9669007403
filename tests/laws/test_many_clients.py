"""Many clients: quadratic costs are announced, and no command needs a file descriptor per client."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

import worlds
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.compare import compare
from pflcli.commands.extract import extract
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import methods, registry
from pflcli.core.execution import Execution
from pflcli.core.reporter import NullReporter
from pflcli.core.settings import Settings
from pflcli.plugins.checks.laws.federations import make_tiny_clients
from pflcli.plugins.checks.laws.methods import is_quadratic
from pflcli.workflow.training import notices

DECLARING = [card.name for card in registry.cards("methods") if "PAIRS_SENT" in card.facts]

WIDE = {"fedhealth": {"samples": 20, "features": 500}}
"""Clients whose samples are not lost beside the models, for a method that sends samples."""

OPTIONS = {"fedhealth": {"public": 1.0}}


@pytest.mark.parametrize("method", DECLARING)
def test_traffic_grows_quadratically_with_clients_when_the_method_declares_it(method):
    """The converse is a law of all methods. Of a n^2 + b n + c, for 8, 16 and 32 clients, a must not be negligible."""
    sent_bytes = []
    for clients in (8, 16, 32):
        data = make_tiny_clients(clients, **WIDE.get(method, {}))
        options = OPTIONS.get(method, {})
        run = worlds.run(method, data=data, participation=1.0, rounds=2, epochs=1, options=options)
        worlds.play(method, run)
        sent_bytes.append(sum(run.traffic.values()))
    assert is_quadratic(sent_bytes), sent_bytes


def test_pair_costs_count_the_cohort_of_a_round_and_the_models_of_all_clients(small, monkeypatch):
    monkeypatch.setattr(notices, "MIN_CLIENTS_FOR_PAIR_COSTS", 1)
    monkeypatch.setattr(notices.parameters, "size", lambda params: 10**9)
    method, settings = methods.load("fedham"), Settings(model="mlp", participation=0.5)
    (line,) = notices.describe_pair_costs("fedham", method, method.Config(), settings, open_artifact(small.p))
    assert line.startswith("fedham: 3 of 6 clients a round are sent up to 6 models each, 18.0 GB;")


class Recorder(NullReporter):
    """A reporter that keeps all lines."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def partition_of_300_clients(tmp_path_factory):
    """A partition among 300 clients."""
    at = tmp_path_factory.mktemp("many")
    draw, clients = np.random.default_rng(0), 300
    owner = np.repeat(np.arange(clients), 5)
    np.savez(at / "data.npz", x=draw.normal(size=(len(owner), 4)).astype(np.float32), y=owner % 3, owner=owner)
    import_data(at / "data.npz", at / "data")
    partition(str(at / "data"), at / "p")
    return at


SETTINGS = {"model": "logistic", "rounds": 2, "participation": 0.2}


@pytest.mark.parametrize("method", ["knn-per", "ditto", "pens"])
def test_commands_do_not_open_one_file_per_client(partition_of_300_clients, method, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    execution = Execution(threads=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/dev/fd").iterdir()]) + 64, hard))
    try:
        source, settings = partition_of_300_clients / "p", SETTINGS
        if method == "knn-per":
            train_global(source, tmp_path / "b", settings=settings, execution=execution)
            extract(tmp_path / "b", tmp_path / "e", execution=execution)
            source, settings = build_datastore(tmp_path / "e", tmp_path / "d", execution=execution).path, {}
        personalize(method, source, tmp_path / method, settings=settings, execution=execution)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FACTS = (
    ("fedham", "60 of 300 clients a round are sent up to 300 models each, 0.0 GB"),
    ("fedhealth", "300 clients are sent 90 or more samples each"),
    ("panm", "90,000 pairs"),
)


def test_personalize_warns_of_costs_that_grow_quadratically_with_clients(
    partition_of_300_clients, monkeypatch, tmp_path
):
    """In numbers that follow from the request: models a round, bytes, pairs."""
    monkeypatch.setattr(notices, "MIN_CLIENTS_FOR_PAIR_COSTS", 300)
    for method, number in FACTS:
        reporter = Recorder()
        execution = Execution(dry_run=True, reporter=reporter)
        personalize(method, partition_of_300_clients / "p", tmp_path / method, settings=SETTINGS, execution=execution)
        assert any(number in line for line in reporter.lines), reporter.lines
    monkeypatch.setattr(notices, "MIN_CLIENTS_FOR_PAIR_COSTS", 301)
    reporter = Recorder()
    personalize(
        "panm",
        partition_of_300_clients / "p",
        tmp_path / "panm",
        settings=SETTINGS,
        execution=Execution(dry_run=True, reporter=reporter),
    )
    assert len(reporter.lines) == 1


def test_compare_dry_run_warns_of_costs_that_grow_quadratically_with_clients(
    partition_of_300_clients, monkeypatch, tmp_path
):
    monkeypatch.setattr(notices, "MIN_CLIENTS_FOR_PAIR_COSTS", 300)
    execution = Execution(dry_run=True, reporter=Recorder())
    compare(
        [partition_of_300_clients / "p"],
        tmp_path / "c",
        methods=["fedavg", "panm"],
        settings=SETTINGS,
        execution=execution,
        references=False,
    )
    remarks = [line for line in execution.reporter.lines if "square of the clients" in line]
    assert len(remarks) == 1
    assert remarks[0].startswith("panm: a table of all 90,000 pairs")
