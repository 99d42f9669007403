"""The commands that a page shows make the same artifacts: run again, they are up to date."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.import_data import import_data
from pflcli.commands.new_client import new_client
from pflcli.commands.partition import partition
from pflcli.evaluation import lineage
from pflcli.evaluation.stored_comparison import read_comparison
from pflcli.plugins.page import runs


@pytest.fixture
def run_page_commands(pfl, monkeypatch):
    """Type the commands of an artifact's page in the folder to which their paths are relative."""

    def run(path):
        history = lineage.trace(open_artifact(path))
        lines = lineage.list_commands(history)
        monkeypatch.chdir(history.base)
        for line in lines:
            result = pfl(*shlex.split(line)[1:], "--dry-run")
            assert result.code == 0, f"{line}\n{result.err}"
            assert "up to date" in result.err, f"{line}\n{result.err}"
        return lines

    return run


def test_page_commands_of_a_comparison_are_up_to_date(run_page_commands, tmp_path):
    partition("writers", tmp_path / "p", clients=4, scheme="dirichlet", options={"alpha": 0.3}, seed=3)
    compare(
        [tmp_path / "p"],
        tmp_path / "c",
        methods=["fedavg", "local", "local@slow"],
        seeds=[1, 2],
        options={"local@slow": {"epochs": 2, "lr": 0.01}},
        settings={"model": "logistic", "rounds": 1, "milestones": (1,), "refit": True},
        metrics=["f1", "accuracy"],
        references=False,
    )
    lines = run_page_commands(tmp_path / "c" / "comparison")
    assert len(lines) == 2
    assert "--set local@slow.lr=0.01" in lines[1]


def test_page_commands_of_an_evaluation_cover_the_whole_chain(run_page_commands, small):
    assert [line.split()[1] for line in run_page_commands(small.ev)] == [
        *("partition", "train-global", "extract", "build-datastore", "personalize", "personalize", "evaluate")
    ]


def test_page_commands_start_at_the_import_or_name_missing_data(run_page_commands, tmp_path):
    rows = [f"{'AB'[n % 2]},{'yes' if n % 3 else 'no'},{n},{n * n % 7}" for n in range(40)]
    (tmp_path / "visits.csv").write_text("\n".join(["hospital,outcome,age,pressure", *rows]) + "\n")
    at = tmp_path / "runs"
    import_data(tmp_path / "visits.csv", at / "data", client="hospital", label="outcome", standardize=True)
    partition(str(at / "data"), at / "p", fractions=(0.5, 0.2, 0.3))
    compare([at / "p"], at / "c", methods=["local"], settings={"model": "logistic", "rounds": 1}, references=False)
    comparison = at / "c" / "comparison"
    lines = run_page_commands(comparison)
    assert [line.split()[1] for line in lines] == ["import", "partition", "compare"]
    assert lines[0] == ("pfl import visits.csv -o runs/data --client hospital --label outcome --standardize federation")
    shutil.rmtree(at / "data")
    history = lineage.trace(open_artifact(comparison))
    assert lineage.list_commands(history)[0].startswith("pfl partition runs/data -o runs/p ")
    assert not runs.read(read_comparison(open_artifact(comparison)), history).remarks


def test_page_commands_keep_values_and_hidden_folders_that_begin_with_a_dot(tmp_path, monkeypatch, pfl):
    monkeypatch.chdir(tmp_path)
    Path("v.csv").write_text("\n".join([".site,y,x", *(f"{'AB'[n % 2]},{n % 3},{n}" for n in range(40))]) + "\n")
    assert pfl("import", "v.csv", "--client", ".site", "--label", "y", "-o", ".hidden").code == 0
    lines = lineage.list_commands(lineage.trace(open_artifact(tmp_path / ".hidden")))
    at = tmp_path.name
    assert lines == [f"pfl import {at}/v.csv -o {at}/.hidden --client .site --label y"]


def test_page_commands_include_new_client(small, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "late.npz", x=rng.integers(0, 256, (12, 28, 28), dtype=np.uint8), y=np.arange(12) % 10)
    new_client(small.knn, tmp_path / "late.npz", tmp_path / "late", client="late")
    evaluate([tmp_path / "late"], tmp_path / "ev")
    lines = lineage.list_commands(lineage.trace(open_artifact(tmp_path / "ev")))
    assert lines[-2].split()[1] == "new-client"
    assert lines[-2].endswith("late --client late")


def test_page_commands_of_a_comparison_work_without_its_runs(compared, tmp_path):
    shutil.copytree(compared.path, tmp_path / "comparison")
    history = lineage.trace(open_artifact(tmp_path / "comparison"))
    assert len(history.artifacts) == 1
    assert {item.kind for item in history.missing} == {"predictions"}
    assert "--methods fedavg,knn-per,panm --no-references --seeds 0,1" in lineage.list_commands(history)[0]


def test_page_commands_of_a_tuned_comparison_with_stack_are_up_to_date(run_page_commands, small, tmp_path):
    compare(
        [small.p],
        tmp_path / "c",
        methods=["fedavg", "local", "knn-per", "stack"],
        seeds=[3, 1],
        settings={"model": "logistic", "rounds": 1},
        options={"local": {"epochs": 2}, "stack": {"gate": False}},
        tune=2,
        references=False,
    )
    lines = run_page_commands(tmp_path / "c" / "comparison")
    assert "--seeds 3,1 --set local.epochs=2 --set stack.gate=false --tune 2" in lines[-1]
    assert "--lr" not in lines[-1]


def test_page_commands_include_stack(run_page_commands, small):
    assert run_page_commands(small.st)[-1].startswith("pfl stack ")


def test_page_command_of_an_extended_comparison_includes_the_additions(run_page_commands, small, tmp_path):
    quick = {"settings": {"model": "logistic", "rounds": 1}}
    compare([small.p], tmp_path / "c", methods=["fedavg"], references=False, **quick)
    compare(
        [small.p],
        tmp_path / "c",
        methods=["local"],
        seeds=[1],
        options={"local": {"epochs": 2}},
        references=False,
        **quick,
    )
    (line,) = run_page_commands(tmp_path / "c" / "comparison")[-1:]
    assert "--methods local,fedavg --no-references --seeds 0,1 --set local.epochs=2" in line


def test_recorded_command_has_paths_relative_to_the_artifact(small, tmp_path, pfl, monkeypatch):
    """Neither the current folder nor an absolute path is recorded, and Python records the line of the terminal."""
    from pflcli.commands.personalize import personalize

    monkeypatch.chdir(tmp_path)
    shutil.copytree(small.p, tmp_path / "runs" / "p")
    words = ("--model", "logistic", "--rounds", 1, "--set", "lam=0.5", "--upload", "int8", "--seed", 4)
    assert pfl("personalize", "ditto", "runs/p", "-o", "runs/typed", *words).code == 0
    settings = {"model": "logistic", "rounds": 1, "upload": ("int8",), "lr": 0.1}
    personalize(
        "ditto", tmp_path / "runs" / "p", tmp_path / "runs" / "called", options={"lam": 0.5}, settings=settings, seed=4
    )
    recorded = {name: open_artifact(tmp_path / "runs" / name).manifest.made["command"] for name in ("typed", "called")}
    assert recorded["typed"] == (
        "pfl personalize ditto ./p -o ./typed --model logistic --rounds 1 --upload int8 --set lam=0.5 --seed 4"
    )
    assert recorded["called"] == recorded["typed"].replace("./typed", "./called")


def test_page_commands_abbreviate_artifacts_without_a_recorded_command(small, monkeypatch):
    history = lineage.trace(open_artifact(small.ev))
    for artifact in history.artifacts:
        artifact.manifest.made.pop("command", None)
    lines = lineage.list_commands(history)
    assert all(line.startswith("pfl ") and line.endswith(" ...") for line in lines)
    assert lines[0].split()[:2] == ["pfl", "partition"]
