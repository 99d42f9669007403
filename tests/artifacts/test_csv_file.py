"""Cells that a reader would take as formulas, or as the end of a row."""

from __future__ import annotations

import csv
import io

import pytest

from pflcli.artifacts import csv_file


@pytest.mark.parametrize("cell", ["=1", "+x", "-x", "@x", "\tx"])
def test_a_cell_that_a_spreadsheet_would_take_as_a_formula_gets_an_apostrophe(cell):
    file = csv_file.encode(["client", cell], [["ann", cell], ["bob", -1.5]])
    escaped = csv_file.escape_formulas(file)
    assert escaped == csv_file.encode(["client", f"'{cell}"], [["ann", f"'{cell}"], ["bob", -1.5]])


@pytest.mark.parametrize("cell", ["a\rb", "\r", "a\r\nb", "a\nb", 'a"\rb', "a, b", "é"])
def test_a_cell_with_the_end_of_a_line_is_read_as_it_was_written(cell):
    rows = [["client", cell, ""], ["", "ann", cell]]
    read = csv.reader(io.StringIO(csv_file.encode(rows[0], rows[1:]).decode(), newline=""))
    assert [*read] == rows
    assert [*csv.reader(io.StringIO(csv_file.escape_formulas(csv_file.encode(["x"], [[f"x{cell}"]])).decode()))][1:]


def test_rows_end_with_a_line_feed():
    assert csv_file.encode(["a", "b"], [[1, None], ["", "x\ry"]]) == b'a,b\n1,\n,"x\ry"\n'
