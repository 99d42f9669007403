"""Closed standard streams, a deleted working directory, a symbolic link to itself, and too little address space."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pflcli

PFL = f"{sys.executable} -m pflcli"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(pflcli.__file__).parents[1])}


def run_in_bash(line, **options):
    return subprocess.run(["bash", "-c", line], text=True, capture_output=True, check=False, env=ENVIRONMENT, **options)


ALL = "<&- >&- 2>&-"


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        *(("show {p}", closed) for closed in ("<&-", ">&-", "2>&-", ALL)),
        *(("evaluate {knn} -o {out}", closed) for closed in ("2>&-", ALL)),
        ("list methods", ALL),
        ("doctor", ALL),
    ],
)
def test_closed_streams_do_not_change_the_exit_code(command, closed, small, tmp_path):
    """Cron jobs and daemons start programs so; the artifact is made, and no file gets the number of a stream."""
    line = command.format(p=small.p, knn=small.knn, out=tmp_path / "e")
    done = run_in_bash(f"{PFL} {line} {closed}")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    if "-o" in command:
        assert (tmp_path / "e" / "manifest.json").is_file()


def test_training_finishes_with_closed_stderr(small, tmp_path):
    done = run_in_bash(f"{PFL} personalize local {small.p} -o {tmp_path / 'l'} --model logistic --rounds 1 2>&-")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "l"))


def test_error_keeps_its_exit_code_with_closed_stderr(tmp_path):
    assert run_in_bash(f"{PFL} show {tmp_path / 'nothing'} 2>&-").returncode == 3


def test_deleted_working_directory_is_an_error(small, tmp_path):
    (tmp_path / "gone").mkdir()
    done = run_in_bash(f"cd {tmp_path / 'gone'}; rmdir {tmp_path / 'gone'}; {PFL} show {small.p}")
    assert done.returncode == 3
    assert "current folder no longer exists" in done.stderr


def test_output_that_is_a_link_to_itself_is_an_error(pfl, small, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    ran = pfl("evaluate", small.knn, "-o", tmp_path / "loop")
    assert ran.code == 3
    assert "a symbolic link points to itself" in ran.err or "symbolic links" in ran.err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS does not limit the address space")
@pytest.mark.compiled  # without compiled loops the run fits into so little
def test_too_little_address_space_is_reported_as_an_error(small, tmp_path):
    done = run_in_bash(
        f"ulimit -v 600000; {PFL} personalize local {small.p} -o {tmp_path / 'l'} --model mlp --rounds 1"
    )
    assert done.returncode in (3, 5), done.stderr
    assert "a bug in pfl" not in done.stderr
