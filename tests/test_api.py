"""The Python API: each command is a function of ``pflcli``."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import pflcli
from helpers import ROOT
from pflcli import evaluate, import_data, partition, sweep
from pflcli.errors import UsageError


def test_every_command_that_writes_is_a_function_of_the_package():
    modules = {path.stem for path in (ROOT / "commands").glob("[!_]*.py")}
    functions = {name for name in modules if hasattr(pflcli, name)}
    assert functions == {*pflcli.__all__}
    assert modules - functions == {"doctor", "listing", "new", "show"}  # they print, or write no artifact
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


def test_a_partition_takes_its_dataset_as_a_path(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, owner=np.arange(20) % 4 // 2)
    dataset = import_data(tmp_path / "a.npz", tmp_path / "data", client="owner").path
    assert partition(dataset, tmp_path / "p").summary["clients"] == 2
