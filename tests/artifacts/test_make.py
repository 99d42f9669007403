"""Artifacts under ``make``, which compares the times of files, and garbage collection while they are made."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys

import pytest

from helpers import build, spec
from pflcli.artifacts.make import make
from pflcli.artifacts.reader import open_artifact
from pflcli.core.execution import Execution

MAKEFILE = """
PFL = {python} -m pflcli

p/manifest.json:
\t$(PFL) partition writers --clients 4 -o p -q

b/manifest.json: p/manifest.json
\t$(PFL) train-global p -o b --model logistic --rounds 1 -q
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")
def test_makefile_does_not_rerun_up_to_date_targets(tmp_path):
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))

    def make():
        ran = subprocess.run(["make", "b/manifest.json"], cwd=tmp_path, capture_output=True, text=True, check=True)
        return [line for line in ran.stdout.splitlines() if "pflcli" in line]

    assert len(make()) == 2
    assert make() == []
    written = (tmp_path / "b" / "manifest.json").read_bytes()
    later = (tmp_path / "b" / "manifest.json").stat().st_mtime + 1
    os.utime(tmp_path / "p" / "manifest.json", (later, later))  # as a copy would do
    os.utime(tmp_path / "b" / "manifest.json", (later - 5, later - 5))
    assert len(make()) == 1
    assert make() == []
    assert (tmp_path / "b" / "manifest.json").read_bytes() == written


def test_garbage_collection_runs_only_after_worker_processes(tmp_path, monkeypatch):
    """A search takes as long as small artifacts do, and alone ends worker processes whose seconds count."""
    searches = []
    monkeypatch.setattr(gc, "collect", lambda: searches.append("search"))
    make(tmp_path / "alone", spec(), Execution(), build)
    assert searches == []
    make(tmp_path / "beside", spec(), Execution(jobs=2), build)
    assert searches == ["search"]


def test_artifacts_are_not_charged_with_one_off_work(tmp_path):
    """``compile_seconds`` is such work: what is compiled once serves all later runs of the process."""
    once = [3.0, 2.0]

    def build_slowly(writer):
        writer.seconds += 50.0
        once[:] = 3.0 + 40.0, 2.0 + 30.0
        return build(writer)

    make(tmp_path / "out", spec(), Execution(), build_slowly, uncharged=lambda: (once[0], once[1]))
    made = open_artifact(tmp_path / "out").manifest.made
    assert 10.0 <= made["seconds"] < 20.0
    assert -30.0 <= made["processor_seconds"] < -20.0
