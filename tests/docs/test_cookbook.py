"""Every page of the cookbook runs as it is written: commands, Python, the Makefile and the jobs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_cluster

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "cookbook").glob("*.md")}
SHIM = '#!/bin/sh\nexec "{python}" -m pflcli "$@"\n'
RECORDER = '#!/bin/sh\necho "$*" >> "$LOG"\n'


def find_blocks(page):
    return re.findall(r"^```([\w-]+)\n(.*?)^```", PAGES[page], flags=re.S | re.M)


def parse_commands(text):
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


@pytest.fixture
def install_tools(tmp_path, monkeypatch):
    """Work in an empty folder, where ``pfl`` is this script, and return its surroundings."""

    def install(pfl, sbatch="exit 1"):
        (tmp_path / "bin").mkdir()
        for name, script in (("pfl", pfl), ("sbatch", sbatch)):
            (tmp_path / "bin" / name).write_text(script)
            (tmp_path / "bin" / name).chmod(0o755)
        files = {"LOG": str(tmp_path / "log"), "COUNTER": str(tmp_path / "jobs")}
        return {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **files}

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return install


def run_page(page, pfl):
    """Run the commands and the Python of a page, write its TOML files, in their order, and yield every other block."""
    names = {}
    for language, text in find_blocks(page):
        if language == "python":
            exec(text, names)
        elif language == "sh":
            for program, *arguments in parse_commands(text):
                assert program == "pfl"
                ran = pfl(*arguments)
                assert ran.code == 0, ran.err
        elif language == "toml":
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
        else:
            yield language, text


@pytest.mark.parametrize("page", sorted({*PAGES} - {"cluster", "gallery", "make", "pfllib-flbench", "worth-it"}))
def test_cookbook_page_runs(page, pfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, text in run_page(page, pfl):  # recipes, which take long: tests of their own run them with a stub
        assert language == "bash"
        assert (ROOT / shlex.split(text)[1]).is_file()
    assert any(tmp_path.iterdir())


def test_page_on_the_worth_of_federation_quotes_the_decisions(pfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = []

    def record(*arguments):
        printed.append(pfl(*arguments))
        return printed[-1]

    assert not list(run_page("worth-it", record))
    decisions = [
        " ".join(lines.replace("> ", "").split())
        for lines in re.findall(r"(?:^> .*\n)+", PAGES["worth-it"], flags=re.M)
    ]
    assert [decision.split(":")[0] for decision in decisions] == ["No gain was shown", "A gain is shown"]
    assert "No gain was shown: stay with alone" in printed[1].out + printed[1].err
    # Intervals over `local` are close to 0 there, and depend on the processor; those over `alone` are not.
    table = Path("runs/writers-c/comparison/table.md").read_text()
    assert re.search(r"^\| fedavg-plus .*\| \+\d+\.\d \[\+", table, flags=re.M)


@pytest.mark.long
def test_gallery_page_makes_its_pictures(pfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not list(run_page("gallery", pfl))
    assert {*tmp_path.glob("*.png")} == {tmp_path / f"{name}.png" for name in ("classes", "neighbours", "attention")}
    assert {*tmp_path.glob("*.html")} == {tmp_path / "page.html", tmp_path / "claims.html"}


def run_plan(text, pfl, surroundings):
    """Print the script of a page here, run it with a ``pfl`` that records its words, and then these here, too."""
    first, second = text.splitlines()
    line, file = first.split(" > ")
    Path(file).write_text(pfl(*shlex.split(line)[1:]).out)
    subprocess.run(shlex.split(second), env=surroundings, check=True, capture_output=True)
    lines = parse_commands(Path(surroundings["LOG"]).read_text())
    assert [pfl(*words).code for words in lines] == [0] * len(lines)
    assert "up to date" in pfl(*shlex.split(line.partition(" --plan")[0])[1:]).err


def test_cluster_page_jobs_make_the_table(pfl, install_tools):
    surroundings = install_tools(RECORDER, slurm_cluster.SBATCH)
    for language, text in run_page("cluster", pfl):
        assert language == "bash"
        run_plan(text, pfl, surroundings)


def test_make_page_plan_makes_the_table(pfl, install_tools):
    surroundings = install_tools(RECORDER)
    pfl("partition", "writers", "-o", "runs/p", "--clients", 6)
    run_plan(find_blocks("make")[-1][1], pfl, surroundings)


def test_make_page_makefile_names_every_step_once(install_tools):
    surroundings = install_tools(RECORDER)
    (language, makefile), (_, line) = find_blocks("make")[:2]
    assert language == "make"
    Path("Makefile").write_text(makefile)
    dry = subprocess.run([*shlex.split(line), "-n"], env=surroundings, check=True, capture_output=True, text=True)
    assert [step.split()[1] for step in dry.stdout.splitlines()] == [
        "partition", "train-global", "build-datastore", "personalize", "personalize", "evaluate",
    ]  # fmt: skip


@pytest.mark.long
def test_make_page_makefile_runs_the_chain_and_is_then_up_to_date(install_tools):
    surroundings = install_tools(SHIM.format(python=sys.executable))
    (_, makefile), (_, line) = find_blocks("make")[:2]
    Path("Makefile").write_text(makefile)
    subprocess.run(shlex.split(line), env=surroundings, check=True)
    assert Path("runs/ev/table.csv").exists()
    assert "up to date" in subprocess.run(shlex.split(line), env=surroundings, capture_output=True, text=True).stdout
