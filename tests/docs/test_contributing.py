"""The commands, files and checks that CONTRIBUTING.md names exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import pflcli

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_THE_READER = {"my_rule", "my_method", "my_dataset", "my_scheme", "my_model", "my_kind", "my_command", "my_step"}
GENERATED = {".venv-test/bin/python", ".venv-test", "dist/", "runs/quickstart/report.html"}


def find_paths(text):
    """Return the words that could be paths of this repository."""
    return {word for word in re.findall(r"[\w.-]*[\w-]/[\w./-]*\w/?|\b[A-Z]\w+\.(?:md|cff)|\bpyproject\.toml", text)}


def test_files_named_in_contributing_exist():
    text = re.sub(r"\]\(([^)#]*)[^)]*\)|https?://\S+", r" \1 ", TEXT)
    paths = {word for word in find_paths(text) if not OF_THE_READER & {Path(word).stem}} - GENERATED
    assert paths
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("group", ["method", "dataset", "scheme", "model", "upload step", "metric", "command"])
def test_contributing_has_a_checklist_for_each_group(group):
    assert re.search(rf"^### Add an? {group}\n\n(?:.+\n+)*?1\. ", TEXT, flags=re.M)


def test_pre_commit_hooks_equal_the_checks_of_the_test_run():
    hooks = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    checks = re.findall(r'^"\$venv/bin/((?:ruff|mypy).*)$', (ROOT / "tests/run.sh").read_text(), flags=re.M)
    assert checks
    assert [hook.removeprefix(".venv-test/bin/") for hook in hooks] == [
        check.replace('"', "").replace(" --check", "") for check in checks
    ]


def test_workflow_runs_ci_on_supported_python_versions():
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert "bash .ci/run" in text
    assert {"ubuntu-latest", "macos-latest"} <= set(re.findall(r"[\w-]+", text))
    versions = re.findall(r'"(3\.\d+)"', text)
    assert versions
    assert all(f"Programming Language :: Python :: {version}" in PROJECT["classifiers"] for version in versions)
    assert re.findall(r"uses: (\S+)", text)
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in re.findall(r"uses: (\S+)", text))


def test_version_is_the_same_in_all_files():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)[1]
    assert cited == PROJECT["version"] == pflcli.__version__


def test_test_extra_installs_every_other_extra():
    """What is not installed is not tested: Ray and Optuna were skipped at every submission."""
    extras = PROJECT["optional-dependencies"]
    (own,) = (line for line in extras["test"] if line.startswith("pflcli["))
    assert set(re.search(r"\[(.*)\]", own)[1].split(",")) == set(extras) - {"test"}
