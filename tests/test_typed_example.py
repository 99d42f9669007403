"""Users' programs are checked against pfl's types: ``examples/typed.py`` by mypy (``tests/run.sh``) and by pyright."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pflcli
from pflcli.evaluation.charts import vega

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "typed.py"


def test_mypy_checks_the_example_strictly():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert "examples/typed.py" in settings["files"]
    assert (Path(pflcli.__file__).parent / "py.typed").is_file()
    assert (ROOT / "tests" / "run.sh").read_text().count("mypy") > 0


def test_example_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(vega, "render", lambda *_: b"\x89PNG")
    monkeypatch.setattr(vega, "bundle_javascript", lambda: "")
    monkeypatch.setattr("pflcli.plugins.page.charts.render_still", lambda chart: "data:image/png;base64,AA==")
    spec = importlib.util.spec_from_file_location("typed_example", EXAMPLE)
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "typed_example", program)
    spec.loader.exec_module(program)
    assert 0 < program.main(tmp_path) < 1


def test_pyright_accepts_the_example():
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    words = [pyright, "--pythonpath", sys.executable, str(EXAMPLE)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout
    assert "0 errors" in ran.stdout
