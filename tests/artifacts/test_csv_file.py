"""CSV cells that spreadsheet programs would run as formulas, or that contain line ends."""

from __future__ import annotations

import csv
import io

import pytest

from pflcli.artifacts import csv_file


@pytest.mark.parametrize("cell", ["=1", "+x", "-x", "@x", "\tx"])
def test_escape_formulas_prefixes_formula_cells_with_an_apostrophe(cell):
    file = csv_file.encode(["client", cell], [["ann", cell], ["bob", -1.5]])
    escaped = csv_file.escape_formulas(file)
    assert escaped == csv_file.encode(["client", f"'{cell}"], [["ann", f"'{cell}"], ["bob", -1.5]])


@pytest.mark.parametrize("cell", ["a\rb", "\r", "a\r\nb", "a\nb", 'a"\rb', "a, b", "é"])
def test_encode_keeps_line_breaks_in_cells(cell):
    rows = [["client", cell, ""], ["", "ann", cell]]
    read = csv.reader(io.StringIO(csv_file.encode(rows[0], rows[1:]).decode(), newline=""))
    assert [*read] == rows
    assert [*csv.reader(io.StringIO(csv_file.escape_formulas(csv_file.encode(["x"], [[f"x{cell}"]])).decode()))][1:]


def test_encode_ends_rows_with_a_line_feed():
    assert csv_file.encode(["a", "b"], [[1, None], ["", "x\ry"]]) == b'a,b\n1,\n,"x\ry"\n'
