"""The programs of this folder in short."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import federations
import kills
import numpy as np
import pytest
import soak
import typer.main

from pflcli.cli import app
from pflcli.cli.from_options import walk_commands

FOLDER = Path(__file__).parent


def test_generated_federations_show_no_fault(tmp_path):
    tally, _ = federations.generated(10, 5, tmp_path / "it")
    assert tally.tried == 10
    assert tally, tally.faults


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_killed_command_is_finished_with_the_same_bytes(command):
    program = [sys.executable, FOLDER / "kills.py", "2", "--only", command]
    ended = subprocess.run([*map(str, program)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(rf"\| {command} \| [2-6] \| 0 \|", ended.stdout)


def test_kill_cases_cover_every_command_or_state_a_reason():
    commands = set(dict(walk_commands(typer.main.get_command(app))))
    killed = {words[0] for words in kills.COMMANDS.values()}
    assert killed | set(kills.WITHOUT_KILLS) == commands
    assert not killed & set(kills.WITHOUT_KILLS)


def test_slope_detects_memory_growth_and_ignores_a_single_jump():
    minutes = np.arange(16) / 8
    assert soak.slope(minutes, np.where(minutes < 0.3, 619.7, 623.8)) == 0
    noise = np.random.default_rng(0).normal(size=16)
    assert soak.slope(minutes, 620 + 1.5 * minutes + 0.1 * noise) == pytest.approx(1.5, abs=0.2)
    assert soak.slope(minutes, 620 + 6 * np.floor(minutes * 2)) > 2  # in steps


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [("kills", 10), ("commits", 10), ("disks", 12), ("federations", 300), ("soak", 5)],
    ids=lambda words: words[0],
)
def test_fault_program_finds_no_fault(words):
    name, count = words
    if name == "commits" and not shutil.which("strace"):
        pytest.skip("strace is not installed")
    program = [sys.executable, FOLDER / f"{name}.py", count]
    ended = subprocess.run([*map(str, program)], capture_output=True, text=True, check=False)
    if ended.stderr.startswith("no tmpfs"):
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stdout + ended.stderr
