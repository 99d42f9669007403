"""Every page of the cookbook is run as it stands: its commands in this process, its Python, Makefile and job."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "cookbook").glob("*.md")}
SHIM = '#!/bin/sh\nexec "{python}" -m pflcli "$@"\n'
RECORDER = '#!/bin/sh\necho "$*" >> "$LOG"\n'


def blocks(page):
    return re.findall(r"^```([\w-]+)\n(.*?)^```", PAGES[page], flags=re.S | re.M)


def commands(text):
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Work in an empty folder, where ``pfl`` is this script, and return its surroundings."""

    def install(script):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "pfl").write_text(script)
        (tmp_path / "bin" / "pfl").chmod(0o755)
        return {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return install


def follow(page, pfl):
    """Run the commands and the Python of a page, in their order, and yield every other block."""
    names = {}
    for language, text in blocks(page):
        if language == "python":
            exec(text, names)
        elif language == "sh":
            for program, *arguments in commands(text):
                assert program == "pfl"
                ran = pfl(*arguments)
                assert ran.code == 0, ran.err
        else:
            yield language, text


@pytest.mark.parametrize("page", sorted({*PAGES} - {"cluster", "make"}))
def test_a_page_runs(page, pfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, text in follow(page, pfl):  # recipes, which take long: tests of their own run them with a stub
        assert language == "bash"
        assert (ROOT / shlex.split(text)[1]).is_file()
    assert any(tmp_path.iterdir())


def test_the_jobs_of_a_cluster_make_what_compare_then_uses(pfl, tool):
    surroundings = tool(RECORDER)
    for _, job in follow("cluster", lambda *arguments: pfl(*arguments)):
        for number in range(4):
            array = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_CPUS_PER_TASK": "1"}
            subprocess.run(["bash", "-euc", job], env={**surroundings, **array}, check=True)
        lines = commands(Path(surroundings["LOG"]).read_text())
        assert len({tuple(line) for line in lines}) == 4
        jobs = [pfl(*line) for line in lines]
        assert [ran.code for ran in jobs] == [0] * 4, jobs
    last = re.search(r"^(pfl compare.*) -n$", PAGES["cluster"], flags=re.M)[1]
    assert "up to date" in pfl(*shlex.split(last)[1:], "-n").err


def test_the_makefile_names_every_step_once(tool):
    surroundings = tool(RECORDER)
    (language, makefile), (_, line) = blocks("make")[:2]
    assert language == "make"
    Path("Makefile").write_text(makefile)
    dry = subprocess.run([*shlex.split(line), "-n"], env=surroundings, check=True, capture_output=True, text=True)
    assert [step.split()[1] for step in dry.stdout.splitlines()] == [
        "partition", "train-global", "build-datastore", "personalize", "personalize", "evaluate",
    ]  # fmt: skip


@pytest.mark.long
def test_make_runs_the_chain_and_then_has_nothing_to_do(tool):
    surroundings = tool(SHIM.format(python=sys.executable))
    (_, makefile), (_, line) = blocks("make")[:2]
    Path("Makefile").write_text(makefile)
    subprocess.run(shlex.split(line), env=surroundings, check=True)
    assert Path("runs/ev/table.csv").exists()
    assert "up to date" in subprocess.run(shlex.split(line), env=surroundings, capture_output=True, text=True).stdout
