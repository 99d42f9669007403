"""``pfl demo`` is the quickstart, and says where its results are."""

from __future__ import annotations

import re

import pytest

import helpers
from pflcli.artifacts.reader import open_artifact
from pflcli.plugins.demo import demo

QUICKSTART = (helpers.ROOT.parent / "examples" / "quickstart.sh").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def shorten_rounds(monkeypatch):
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, "rounds": 1})


def test_demo_has_the_methods_and_settings_of_the_quickstart(monkeypatch):
    monkeypatch.undo()
    line = re.search(r"pfl train-global .*?\n\n|pfl train-global .*?(?=\npfl)", QUICKSTART, flags=re.S)[0]
    typed = dict(re.findall(r"--([a-z-]+) ([\w.]+)", line))
    assert typed == {name.replace("_", "-"): str(value) for name, value in demo.SETTINGS.items()}
    assert re.search(r"for method in (.*);", QUICKSTART)[1].split() == [*demo.METHODS]


def test_demo_compares_methods_and_prints_where_the_results_are(pfl, tmp_path, without_vega):
    out = tmp_path / "demo"
    plan = pfl("demo", "-o", out, "-n")
    assert (plan.code, out.exists()) == (0, False)
    result = pfl("demo", "-o", out, "--threads", "1")
    assert (result.code, result.out) == (0, f"{out / 'comparison'}\n")
    for method in demo.METHODS:
        assert method in result.err
    for name in ("table.md", "accuracy.png"):
        assert (out / "comparison" / name).is_file()
    output = "".join(result.err.split())
    assert "accuracy.png" in output
    assert "report.html" in output
    assert (out / "report.html").is_file()
    assert open_artifact(out / "partition").manifest.summary["clients"] == 60
    again = pfl("demo", "-o", out, "--json")
    assert again.code == 0
    assert "up to date" in again.err
    assert pfl("demo", "-o", out, "-n").code == 0
