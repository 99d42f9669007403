"""The notebooks run from the first cell to the last, and are stored without outputs."""

from __future__ import annotations

import ast
import json
import re
import warnings
from pathlib import Path

import pytest

from pflcli.evaluation.charts import vega

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))}


def read_cells(name):
    """Return the kind and the text of each cell."""
    book = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in book["cells"]]


def run_cell(code, namespace):
    """Run a cell, and return the value of its last expression, which a notebook shows."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


@pytest.fixture
def undrawn(monkeypatch):
    """Draw no picture, which takes seconds."""
    monkeypatch.setattr(vega, "render", lambda *_: b"\x89PNG")
    monkeypatch.setattr(vega, "bundle_javascript", lambda: "")
    monkeypatch.setattr("pflcli.plugins.page.charts.render_still", lambda chart: "data:image/png;base64,AA==")


def run_notebook(name, folder, monkeypatch):
    """Run all cells in one namespace in a folder; return the namespace, and what each cell shows."""
    monkeypatch.chdir(folder)
    namespace = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = [run_cell(text, namespace) for kind, text in read_cells(name) if kind == "code"]
    return namespace, shown


def test_hospital_table_runs(tmp_path, monkeypatch, undrawn):
    namespace, shown = run_notebook("hospital-table", tmp_path, monkeypatch)
    table = namespace["comparison"].table()
    assert {"fedavg", "local", "ditto", "knn-per"} < {*table.index}
    assert table.loc["local", "worst"] > table.loc["fedavg", "worst"] + 0.1  # west needs a model of its own
    assert any(hasattr(each, "_repr_png_") and each._repr_png_() for each in shown)
    assert "page.html" in {path.name for path in tmp_path.iterdir()}
    assert shown[-1].shape == (3, 2)


def test_my_method_runs_against_ten_others(tmp_path, monkeypatch, undrawn, capsys):
    namespace, _ = run_notebook("my-method", tmp_path, monkeypatch)
    assert len(namespace["others"]) == 10
    assert {*namespace["frame"].index} == {*namespace["others"], "halfway"}
    assert namespace["frame"].loc["halfway", "gain"] != 0
    assert (tmp_path / "halfway.html").exists()
    assert r"\begin{table}" in capsys.readouterr().out


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_stored_without_outputs(name):
    cells = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code"
    )
    kind, text = read_cells(name)[0]
    assert kind == "markdown"
    assert re.match(r"# \w", text)
    assert len({cell["id"] for cell in cells}) == len(cells)
