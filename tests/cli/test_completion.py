"""Shell completion, called as the generated scripts call it and typed into real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.main import get_command

from helpers import ROOT
from pflcli.__main__ import main
from pflcli.artifacts import kinds
from pflcli.artifacts.reader import open_artifact
from pflcli.cli import app
from pflcli.cli.from_options import walk_commands
from pflcli.core.metrics import catalogue
from pflcli.core.tasks import RANKING
from pflcli.options import completion


@pytest.fixture
def complete_line(monkeypatch, capsys):
    """Ask for completions of a line in this process, as the script of a shell does; the last word is unfinished."""
    monkeypatch.setattr("pflcli.cli.app", get_command(app))  # built once

    def ask(*words, shell="bash"):
        monkeypatch.setenv(completion.VARIABLE, f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(words))
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main()
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out.strip().splitlines()

    return ask


LINES = {
    ("pfl", "per"): ["personalize"],
    ("pfl", "personalize", "knn"): ["knn-peers", "knn-per", "knn-per-extended", "knn-per-plus"],
    ("pfl", "compare", "p", "--methods", "fedavg,loc"): ["fedavg,local"],
    ("pfl", "compare", "p", "--methods", "local,loc"): [],
    ("pfl", "compare", "p", "--metric", "auroc,f"): ["auroc,f1"],
    ("pfl", "compare", "p", "--baseline", "pan"): ["panm"],
    ("pfl", "personalize", "fedavg", "p", "--engine", "lo"): ["loop"],
    ("pfl", "partition", "heart"): ["heart-disease"],
    ("pfl", "partition", "writers", "--scheme", "dir"): ["dirichlet"],
    ("pfl", "train-global", "p", "--model", "mob"): ["mobilenet-v2"],
    ("pfl", "train-global", "p", "--upload", "cl"): ["clip"],
    ("pfl", "train-global", "p", "--precision", "b"): ["bfloat16"],
    ("pfl", "personalize", "./mi"): ["./mine.py"],
    ("pfl", "compare", "p", "--methods", "fedavg,./mi"): ["fedavg,./mine.py"],
    ("pfl", "train-global", "p", "--model", "./"): ["./mine.py", "./sub/"],
    ("pfl", "check", "trim"): ["trimmed-mean"],
    ("pfl", "new", "sch"): ["scheme"],
    ("pfl", "list", "sch"): ["schemes"],
    ("pfl", "list", "schemes", "pach"): ["pachinko"],
    ("pfl", "site", "a"): ["answer"],
    ("pfl", "federation", "run", "fed", "--at"): ["--at", "--at-least"],
    ("pfl", "show", "--ver"): ["--verify", "--verbose"],
    ("pfl", "import", "data.csv", "--standardize", "cl"): ["client"],
}


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_completion_offers_commands_options_and_values(complete_line, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "sub").mkdir()
    assert complete_line(*line) == LINES[line]


SOURCES = "partition backbone embeddings datastore"
KINDS = {
    ("personalize", "knn-per"): SOURCES,
    ("tune", "ditto"): SOURCES,
    ("train-global",): "partition",
    ("compare",): "partition",
    ("extract",): "backbone",
    ("extract", "b", "--partition"): "partition",
    ("build-datastore",): "embeddings",
    ("sweep",): "embeddings",
    ("update-datastore",): "datastore",
    ("update-datastore", "d"): "embeddings",
    ("stack", "fedavg"): "predictions",
    ("evaluate",): "predictions",
    ("audit",): "predictions",
    ("audit", "knn", "--reference"): "predictions",
    ("predict",): "predictions",
    ("new-client",): "predictions",
    ("export",): "predictions",
    ("report",): "evaluation comparison audit verdicts federation",
    ("track",): "comparison evaluation predictions backbone",
    ("federation", "create"): "predictions",
    ("federation", "check"): "federation",
    ("federation", "run"): "federation",
    ("site", "join"): "federation",
    ("site", "check"): "partition",
    ("site", "check", "p"): "federation",
    ("show",): " ".join(kinds.schemas()),
}


@pytest.mark.parametrize("line", KINDS, ids=" ".join)
def test_completion_offers_artifacts_of_the_right_kind(complete_line, small, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    for folder in (*small.root.iterdir(), ROOT.parent / "tests/golden/schema-1/federation"):
        Path(folder.name).symlink_to(folder)
    kind_of = {folder.name: open_artifact(folder).kind for folder in tmp_path.iterdir() if folder.is_dir()}
    expected = sorted(name for name, kind in kind_of.items() if kind in KINDS[line].split())
    assert len(expected) >= 1
    assert complete_line("pfl", *line, "") == expected


def test_cases_cover_every_command_that_takes_an_artifact():
    expected = {
        name
        for name, command in walk_commands(get_command(app))
        for param in command.params
        if param.param_type_name == "argument" and str(param.metavar).strip(".").lower() in kinds.schemas()
    }
    assert len(expected) > 10
    assert expected <= {" ".join(line[: 2 if line[0] in ("federation", "site") else 1]) for line in KINDS} | {
        "partition",
        "embed",
        "site columns",
    }


def test_completion_descends_into_folders(complete_line, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deeper = tmp_path / "my runs" / "seed-0"
    shutil.copytree(small.p, deeper / "p")
    for name in ("p2.partial", ".hidden"):
        shutil.copytree(small.p, deeper / name)
    (deeper / "broken").mkdir()
    (deeper / "broken" / "manifest.json").write_text("{")
    assert complete_line("pfl", "compare", "my") == ["my runs/seed-0/p", "my runs/seed-0/broken/"]
    assert complete_line("pfl", "compare", r"my\ runs/seed-0/p") == ["my runs/seed-0/p"]
    assert complete_line("pfl", "compare", "nowhere/") == []
    monkeypatch.setenv("HOME", str(deeper))
    assert complete_line("pfl", "compare", "~/p") == ["~/p"]


def test_completion_offers_the_metrics_of_the_catalogue():
    assert {*RANKING} <= {*catalogue.METRICS}
    assert all(catalogue.METRICS[name].is_per_client for name in RANKING)


def test_completion_of_any_option_never_fails(complete_line, tmp_path, monkeypatch):
    """Every option and argument of every command, before anything, behind nonsense, and in broken quotes."""
    monkeypatch.chdir(tmp_path)
    for name, command in walk_commands(get_command(app)):
        for param in command.params:
            option = [opt for opt in param.opts if opt.startswith("--")][:1]
            complete_line("pfl", *name.split(), *option, "")
            complete_line("pfl", *name.split(), "nowhere", "nothing", *option, "'x=\"")


def test_completion_loads_no_heavy_package():
    code = (
        "import os, sys; os.environ |= {'_PFL_COMPLETE': 'complete_bash', 'COMP_CWORD': '2',"
        "'COMP_WORDS': 'pfl\\npersonalize\\ndit'}\n"
        "from pflcli.__main__ import run\n"
        "try: run()\n"
        "except SystemExit: print(*sorted({'torch', 'numpy', 'pandas', 'h5py'} & {*sys.modules}), 'end')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["ditto", "end"]


# Real shells

_PFL = f"""#!/bin/sh
if [ -n "$_PFL_COMPLETE" ] || [ "$1" = --show-completion ]; then
  PYTHONPATH='{ROOT.parent}' exec '{sys.executable}' -c 'from pflcli.__main__ import run; run()' "$@"
fi
printf '<%s>' "$@"; echo '<end>'
"""
"""A ``pfl`` that completes, and prints the words of any other line."""


@pytest.fixture
def completion_folder(small, tmp_path, monkeypatch):
    """A folder with artifacts, and a ``pfl`` on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pfl").write_text(_PFL)
    (tmp_path / "bin" / "pfl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    (tmp_path / "runs").mkdir()
    for name in ("p", "ev"):
        (tmp_path / "runs" / name).symlink_to(getattr(small, name))
    monkeypatch.chdir(tmp_path)


def find_shell(name, *args):
    """Return the path of a shell; skips the test where it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return [path, *args]


def type_into_shell(command, set_up, line):
    """Type a line with tabulators into an interactive shell; return the words that ``pfl`` then receives."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(command[0], command)
    output = ""
    try:
        for text, until in ((f"{set_up}; echo rea''dy\n", "ready"), (f"{line}\n", "<end>")):
            os.write(terminal, text.encode())
            deadline = time.monotonic() + 120
            output = ""
            while until not in output:
                assert time.monotonic() < deadline, output
                if select.select([terminal], [], [], 1)[0]:
                    output += os.read(terminal, 4096).decode(errors="replace")
    finally:
        os.close(terminal)
        os.kill(process, 9)
        os.waitpid(process, 0)
    return re.findall(r"<([^<>]*)>", output)[:-1]


LINE = "pfl personali\tdit\tru\t--model mob\t"
WORDS = ["personalize", "ditto", "runs/p", "--model", "mobilenet-v2"]


def test_bash_completes(completion_folder):
    words = type_into_shell(find_shell("bash", "--norc", "-i"), 'eval "$(pfl --show-completion)"', LINE)
    assert words == WORDS


def test_zsh_completes(completion_folder):
    set_up = 'autoload -U compinit; compinit -u; eval "$(pfl --show-completion)"'
    assert type_into_shell(find_shell("zsh", "-f", "-i"), set_up, LINE) == WORDS


def test_fish_completes(completion_folder):
    lines = {
        "pfl personali": ["personalize"],
        "pfl personalize ditto ru": ["runs/p"],
        "pfl personalize ditto runs/p --model mob": ["mobilenet-v2"],
    }
    script = "pfl --show-completion | source; " + "; echo; ".join(f"complete -C '{line}'" for line in lines)
    result = subprocess.run(find_shell("fish", "-c", script), capture_output=True, text=True, check=True)
    offers = [[offer.split("\t")[0] for offer in block.splitlines()] for block in result.stdout.split("\n\n")]
    assert offers == [*lines.values()]
