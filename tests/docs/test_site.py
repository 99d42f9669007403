"""The site of the documentation can be built without network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="pip install '.[docs]'")


def test_documentation_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "Which personalization method works best" in (tmp_path / "site" / "index.html").read_text()
