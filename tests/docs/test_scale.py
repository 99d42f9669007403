"""The table of docs/performance.md says of each method what the engine counts."""

from __future__ import annotations

import csv
import importlib.util

import pytest

from helpers import ROOT
from pflcli.core import methods, registry

PROJECT = ROOT.parent
TRAINED = [
    card.name
    for card in registry.cards("methods")
    if methods.load(card.name).has_rounds and "EXTENDS" not in card.facts
]
QUICK = ("fedavg", "fedper", "ifca", "gossip", "fedham", "scaffold")
"""Methods whose rounds are cheap, of each kind of traffic."""


@pytest.fixture(scope="module")
def round_costs_program():
    """benchmarks/round_costs.py as a module."""
    spec = importlib.util.spec_from_file_location("round_costs", PROJECT / "benchmarks" / "round_costs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_documented_costs():
    """The cells of docs/results/scale-rounds.csv by method."""
    with (PROJECT / "docs" / "results" / "scale-rounds.csv").open(encoding="utf-8", newline="") as file:
        return {name: cells for name, *cells in list(csv.reader(file))[1:]}


def test_scale_table_has_every_method_with_rounds():
    assert [*read_documented_costs()] == TRAINED


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in TRAINED])
def test_scale_table_equals_the_counts_of_the_engine(round_costs_program, name):
    *expected, pairs = read_documented_costs()[name]
    *cells, kept_pairs = round_costs_program.row(name)
    assert kept_pairs == pairs
    # How often a method trains until it converges may depend on the last bits of the processor's sums.
    assert [float(cell) for cell in cells] == pytest.approx([float(cell) for cell in expected], rel=0.1, abs=0.02)
