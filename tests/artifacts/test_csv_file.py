"""Cells that a spreadsheet would take as formulas."""

from __future__ import annotations

import pytest

from pflcli.artifacts import csv_file


@pytest.mark.parametrize("cell", ["=1", "+x", "-x", "@x", "\tx"])
def test_a_cell_that_a_spreadsheet_would_take_as_a_formula_gets_an_apostrophe(cell):
    file = csv_file.encode(["client", cell], [["ann", cell], ["bob", -1.5]])
    escaped = csv_file.escape_formulas(file)
    assert escaped == csv_file.encode(["client", f"'{cell}"], [["ann", f"'{cell}"], ["bob", -1.5]])
