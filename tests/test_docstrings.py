"""``help`` of every public function has an example, and all examples run, one after the other in one folder."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import warnings

import pytest

import pflcli
from pflcli import method
from pflcli.core import registry
from pflcli.evaluation.charts import vega
from pflcli.plugins.page import charts

NEEDED = {"Tracker": "tensorboard", "track": "tensorboard", "embed": "onnx", "export": "onnx"}
"""What examples need that is not installed with pfl."""
PUBLIC = {name: getattr(pflcli, name) for name in pflcli.__all__}
OFFERED = {name: getattr(method, name) for name in registry.read_homes()}
SHOWN = {
    **PUBLIC,
    **{
        f"{group}.{name}": getattr(members, name)
        for group, members in PUBLIC.items()
        if inspect.ismodule(members)
        for name in members.__all__
    },
    **{f"method.{name}": value for name, value in OFFERED.items() if inspect.isfunction(value)},
    "method": method,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the examples write; an artifact of an earlier one is up to date."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def undrawn(monkeypatch):
    """Draw no picture, which takes seconds."""
    monkeypatch.setattr(vega, "render", lambda *_: b"")
    monkeypatch.setattr(vega, "bundle_javascript", lambda: "")
    monkeypatch.setattr(charts, "render_still", lambda chart: "data:image/png;base64,AA==")


def test_all_functions_are_found():
    assert {"compare", "simulate", "federation", "site.serve", "method.find_nearest", "method.steps_per_epoch"} <= {
        *SHOWN
    }


@pytest.mark.parametrize("name", SHOWN)
def test_example_in_help_runs(name, folder, undrawn, monkeypatch):
    """It begins by importing what it uses, so that it can be typed anywhere."""
    text = inspect.getdoc(SHOWN[name]) or ""
    examples = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert examples.examples, f"help({name}) has no example"
    imported = "".join(example.source for example in examples.examples if " import " in example.source)
    first, _, last = name.rpartition(".")
    assert re.search(rf"\bimport .*\b{first if first in PUBLIC else last}\b", imported) or name == "method"
    if (needed := NEEDED.get(name)) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    monkeypatch.chdir(folder)
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = doctest.DocTestRunner().run(examples, out=said.append)
    assert not found.failed, "".join(said)
