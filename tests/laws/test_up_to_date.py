"""A finished command says "up to date" when it is repeated: for every method and command, in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from helpers import CLASSIFYING
from pflcli import build_datastore, personalize, sweep, train_global, tune
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.reader import open_artifact
from pflcli.core import config, registry
from pflcli.core.errors import ConflictError
from pflcli.core.execution import Execution
from pflcli.core.methods import load
from pflcli.core.settings import ADDED, Settings
from pflcli.workflow.training import run_request

METHODS = CLASSIFYING


def iterate_option_classes():
    """Every class of options, with its name."""
    yield "settings", Settings
    for name in METHODS:
        yield name, load(name).Config
    for group in ("schemes", "uploads", "aggregators"):
        for name in registry.names(group):
            module = __import__(f"pflcli.{registry.package(group)}.{name.replace('-', '_')}", fromlist=["Config"])
            if hasattr(module, "Config"):
                yield f"{group}/{name}", module.Config


@pytest.mark.parametrize(("name", "cls"), list(iterate_option_classes()))
def test_options_read_back_from_a_stored_request_are_unchanged(name, cls):
    """A default such as 1 for a float would be recorded as 1, and as 1.0 when it is read from a request."""
    once = config.plain(config.build(cls, {}, name))
    again = config.plain(config.build(cls, json.loads(json.dumps(once)), name))
    assert json.dumps(again) == json.dumps(once)


def test_requests_record_all_settings_but_added_ones_at_their_defaults(monkeypatch):
    every = {field.name for field in fields(Settings)}
    assert every >= ADDED
    assert {*run_request.recorded_settings(Settings())} == every - ADDED
    monkeypatch.setattr(run_request, "ADDED", frozenset({"dropout"}))
    assert {*run_request.recorded_settings(Settings())} == every - {"dropout"}
    assert run_request.recorded_settings(Settings(dropout=0.3)) == config.plain(Settings(dropout=0.3))


def test_run_made_before_a_setting_was_added_is_up_to_date(small, tmp_path, monkeypatch):
    monkeypatch.setattr(run_request, "ADDED", frozenset({"dropout"}))
    assert "dropout" not in personalize("ditto", small.p, tmp_path / "m", rounds=1).request["settings"]
    assert personalize("ditto", small.p, tmp_path / "m", rounds=1, dropout=0.0).decision == "up to date"
    with pytest.raises(ConflictError, match=r"settings\.dropout: null -> 0\.3"):
        personalize("ditto", small.p, tmp_path / "m", rounds=1, dropout=0.3)


def test_differences_lists_values_that_differ_only_in_json():
    assert manifests.differences({"grid": [1, 2]}, {"grid": [1.0, 2.0]}) == ["grid: [1, 2] -> [1.0, 2.0]"]


@pytest.mark.parametrize(
    ("command", "words", "source"),
    [
        (train_global, (), "p"),
        (personalize, ("fedavg",), "p"),
        (personalize, ("knn-per",), "d"),
        (build_datastore, (), "e"),
        (sweep, (), "e"),
        (tune, ("fedavg",), "p"),
    ],
)
def test_seed_0_is_used_as_given_and_none_takes_the_seed_of_the_source(small, tmp_path, command, words, source):
    artifact = open_artifact(getattr(small, source))
    other = replace(artifact, manifest=replace(artifact.manifest, request={**artifact.manifest.request, "seed": 5}))
    for given, seed in ((None, 5), (0, 0), (3, 3)):
        outcome = command(*words, other, tmp_path / "x", seed=given, execution=Execution(dry_run=True))
        assert outcome.request["seed"] == seed


_REPEAT = """
import json, sys
from pflcli.__main__ import main
for line in json.load(sys.stdin):
    try:
        main(line)
    except SystemExit as end:
        if end.code:
            sys.exit(f"exit code {end.code}: {line}")
"""


def run_command_lines(lines):
    """Run command lines one after the other in a new process; return what they said."""
    command = [sys.executable, "-c", _REPEAT]
    done = subprocess.run(command, input=json.dumps(lines), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_every_method_is_up_to_date_when_repeated_alone_or_in_a_comparison(small, tmp_path):
    """The runs of a comparison are what ``personalize`` makes; hash seeds differ between the two processes."""
    names = [name for name in METHODS if name != "oracle"]  # which needs clusters that are known
    quick, at = ["--rounds", "1", "--model", "mlp", "--threads", "1"], tmp_path / "c"
    compared = ["compare", str(small.p), "-o", str(at), "--methods", ",".join([*names, "stack"]), *quick]
    compared += ["--set", "stack.pool=fedavg,local"]
    alone = []
    for name in names:
        kind = max(("partition", *load(name).NEEDS), key=LINEAGE.index)
        source = small.p if kind == "partition" else at / "seed-0" / kind
        source = at / "seed-0" / "backbone" if name == "fedavg" else source
        settings = [] if kind in ("embeddings", "datastore") else quick
        alone.append(["personalize", name, str(source), "-o", str(at / "seed-0" / name), *settings])
    run_command_lines([compared])
    said = run_command_lines([compared, *alone])
    assert said.count("is up to date") == len(alone) + 1, said


def test_every_command_is_up_to_date_when_repeated(small, tmp_path):
    at = {name: str(tmp_path / name) for name in ("p", "b", "e", "d", "k", "f", "ev", "st", "sw", "au", "t", "c")}
    quick = ["--rounds", "1", "--model", "mlp", "--threads", "1"]
    lines = [
        ["partition", "writers", "--part", "1/20", "-o", at["p"]],
        ["train-global", at["p"], "-o", at["b"], *quick],
        ["extract", at["b"], "-o", at["e"]],
        ["build-datastore", at["e"], "-o", at["d"]],
        ["personalize", "knn-per", at["d"], "-o", at["k"]],
        ["personalize", "fedavg", at["d"], "-o", at["f"]],
        ["evaluate", at["k"], at["f"], "-o", at["ev"]],
        ["stack", at["k"], at["f"], "-o", at["st"]],
        ["sweep", at["e"], "-o", at["sw"], "--plot", "k"],
        ["audit", at["f"], "-o", at["au"]],
        ["tune", "gaussian-head", at["p"], "-o", at["t"], "--trials", "2", *quick],
        ["compare", at["p"], "-o", at["c"], "--methods", "fedavg,gaussian-head", "--tune", "2", *quick],
    ]
    run_command_lines(lines)
    said = run_command_lines(lines)
    at |= {"t": f"{at['t']}/tuning", "c": f"{at['c']}/comparison"}
    assert [path for path in at.values() if f"{path} is up to date" not in said] == []
