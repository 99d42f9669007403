"""Pictures are drawn in a process of their own: if it ends, or vl-convert is missing, only pictures are lost."""

from __future__ import annotations

import functools
import os
import resource
import signal
import subprocess
import sys

import pytest

from pflcli.commands.evaluate import evaluate
from pflcli.commands.show import plot
from pflcli.core.errors import NotDrawnError, UsageError
from pflcli.core.execution import Execution
from pflcli.evaluation.charts import renderer, vega
from pflcli.plugins.page.report import report

SPEC = vega.figure({**vega.data([{"x": 1.0}]), "mark": "point"})


class Heard:
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    detail = say


@pytest.fixture
def runs(small):
    return [small.fedavg, small.knn]


def test_all_pictures_of_a_command_are_drawn_by_one_process():
    first = vega.render(SPEC)
    process = renderer._start(os.getpid())
    assert vega.render(SPEC) == first
    assert vega.bundle_javascript()
    assert renderer._start(os.getpid()) is process
    assert process._process.pid != os.getpid()


def test_a_killed_process_costs_one_picture_and_the_next_is_drawn():
    vega.render(SPEC)
    os.kill(renderer._start(os.getpid())._process.pid, signal.SIGKILL)
    with pytest.raises(NotDrawnError, match="signal 9"):
        vega.render(SPEC)
    assert vega.render(SPEC).startswith(b"\x89PNG")


def test_a_wrong_specification_is_an_error_and_not_the_end_of_the_process():
    with pytest.raises(ValueError, match=r"."):
        vega.render({"mark": {"type": "no such mark"}, "data": {"values": [{}]}})
    assert vega.render(SPEC).startswith(b"\x89PNG")


def test_an_evaluation_is_complete_where_the_address_space_is_limited(tmp_path, runs):
    """vl-convert's engine reserves more than 20 GB, and ends its process by a trap without them."""
    limit = 20 * 2**30
    ran = subprocess.run(
        [sys.executable, "-m", "pflcli", "evaluate", *map(str, runs), "-o", str(tmp_path / "e")],
        preexec_fn=functools.partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert sum("accuracy.png" in line for line in ran.stderr.splitlines()) == 1
    assert "ulimit" in ran.stderr
    assert "knn-per" in ran.stderr
    assert (tmp_path / "e" / "table.md").is_file()
    assert not (tmp_path / "e" / "accuracy.png").exists()


def test_without_vl_convert_tables_and_pages_are_made_and_a_line_says_what_to_install(tmp_path, runs, monkeypatch):
    monkeypatch.setattr(renderer, "PACKAGE", "a_package_that_is_not_installed")
    heard = Heard()
    evaluate(runs, tmp_path / "e", execution=Execution(reporter=heard))
    assert sum("pflcli[pictures]" in line for line in heard.lines) == 1
    assert (tmp_path / "e" / "table.md").is_file()
    assert (tmp_path / "e" / "accuracy.vl.json").is_file()
    page = report(tmp_path / "e", tmp_path / "r.html").path.read_text()
    assert "knn-per" in page
    assert "<figure" not in page
    with pytest.raises(UsageError) as failure:
        plot(tmp_path / "e", tmp_path / "p.png")
    assert failure.value.exit_code == 2
    assert "pip install 'pflcli[pictures]'" in failure.value.fix
