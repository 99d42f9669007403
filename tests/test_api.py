"""The Python API: each command is a function of ``pflcli``."""

from __future__ import annotations

import importlib

import pytest

import pflcli
from helpers import ROOT
from pflcli import evaluate, partition, sweep
from pflcli.errors import UsageError


def test_every_command_that_makes_an_artifact_is_a_function_of_the_package():
    modules = {path.stem for path in (ROOT / "commands").glob("[!_]*.py")}
    functions = {name for name in modules if callable(getattr(pflcli, name, None))}
    assert functions == {*pflcli.__all__}
    # Three of them print, and make nothing; `pflcli.report` is the package of tables.
    assert modules - functions == {"doctor", "listing", "report", "show"}
    for name in functions:
        assert getattr(pflcli, name) is getattr(importlib.import_module(f"pflcli.commands.{name}"), name)
    assert functions <= {*dir(pflcli)}


def test_other_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="'pflcli' has no attribute 'personalise'"):
        _ = pflcli.personalise


def test_a_table_is_a_data_frame_with_a_row_per_method(small):
    table = evaluate([small.fedavg, small.knn], small.ev).table()
    assert table.index.name == "method"
    assert {*table.index} == {"fedavg", "knn-per"}
    assert table["accuracy"].between(0, 1).all()
    assert len(sweep(small.e, small.sw).table()) > 1


def test_a_partition_has_no_table(small):
    with pytest.raises(UsageError, match="this partition has no table"):
        partition("writers", small.p, clients=6, seed=0).table()
