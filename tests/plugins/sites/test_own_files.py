"""A method and a network of one's own in a federation: it carries them, and nobody runs them who has not named them."""

from __future__ import annotations

import h5py
import pytest

from pflcli.core.errors import InputError
from pflcli.plugins.sites.federation import check_federation, run_federation
from pflcli.plugins.sites.site import answer_message, check_site, serve_site

METHOD = """
import os
from dataclasses import dataclass
from pathlib import Path

from rate import SHARE

KIND, NEEDS, PAPER, YEAR = "server", (), "Half", 2026
Path(os.environ["RAN"]).joinpath("half").touch()

@dataclass(frozen=True)
class Config:
    pass

def setup(run):
    return {"global": run.initial_model()}

def train_round(run, state, t):
    cohort = run.cohort(t)
    model = run.download(state["global"], cohort)
    mean = run.average(run.local_sgd(cohort, model, t=t), model)
    return {"global": {name: SHARE * value + (1 - SHARE) * state["global"][name] for name, value in mean.items()}}

def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
"""
NETWORK = """
import os
from pathlib import Path

from torch import nn

Path(os.environ["RAN"]).joinpath("small").touch()

class Small(nn.Module):
    def __init__(self, in_shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_shape[-1] * in_shape[-2], 4), nn.ReLU())
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.body(x))
"""
SITES = ("w0371", "w2430")


@pytest.fixture
def world(tmp_path, monkeypatch, spawn):
    """A federation of both files, in a folder of its own beside the partitions of two sites."""
    at, coordinator = tmp_path / "site", tmp_path / "coordinator"
    for folder in (at, coordinator, tmp_path / "ran"):
        folder.mkdir()
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    for name, text in {
        "half.py": METHOD,
        "small.py": NETWORK,
        "rate.py": "SHARE = 0.5\n",
        "other.py": "1 / 0\n",
    }.items():
        (coordinator / name).write_text(text)
    monkeypatch.chdir(coordinator)
    own = ("--use", "half.py", "--use", "small.py")
    for words in (
        ("partition", "writers", "-o", "p", "--clients", "2"),
        (*own, "personalize", "half", "p", "--model", "small", "--rounds", "1", "--apart", "-o", "run"),
        (*own, "federation", "create", "run", "-o", at / "fed"),
    ):
        process = spawn(*words, "-q")
        assert process.wait(120) == 0, process.stderr.read()
    monkeypatch.chdir(at)
    for path in (tmp_path / "ran").iterdir():
        path.unlink()
    return tmp_path


def test_a_file_of_the_coordinator_runs_only_where_it_was_named(world, pfl, spawn):
    assert {path.name for path in (world / "site" / "fed").glob("*.py")} == {"half.py", "small.py", "rate.py"}
    for name in SITES:
        assert pfl("partition", "writers", "--like", "fed", "--client", name, "-o", f"own-{name}", "-q").code == 0
    refused = pfl("site", "check", "own-w0371", "fed", "-o", "site")
    assert refused.code == 3
    for word in ("methods/half", "models/small", "rate.py", "pfl --use fed/half.py --use fed/small.py"):
        assert word in refused.err
    for run in (
        lambda: check_federation("fed"),
        lambda: check_site("own-w0371", "fed", "site"),
        lambda: run_federation("fed", "exchange", "server"),
    ):
        with pytest.raises(InputError, match="methods/half"):
            run()
    ran = world / "ran"
    assert not [*ran.iterdir()], "code of the coordinator has run, which nobody has named"
    # Where both are named, the sites and the server have the bytes of the simulation.
    own = ("--use", "fed/half.py", "--use", "fed/small.py")
    for name in SITES:
        process = spawn(*own, "site", "check", f"own-{name}", "fed", "-o", f"site-{name}", "-q")
        assert process.wait(120) == 0, process.stderr.read()
    assert sorted(path.name for path in ran.iterdir()) == ["half", "small"]
    for path in ran.iterdir():
        path.unlink()
    for refuse in (
        lambda: serve_site("site-w0371", "exchange"),
        lambda: answer_message("site-w0371", "exchange/question"),
    ):
        with pytest.raises(InputError, match="methods/half"):
            refuse()
    assert not [*ran.iterdir()]
    running = [spawn(*own, "site", "serve", f"site-{name}", "--at", "exchange", "--threads", "1") for name in SITES]
    running.append(spawn(*own, "federation", "run", "fed", "--at", "exchange", "-o", "server", "--threads", "1"))
    for process in running:
        assert process.wait(120) == 0, process.stderr.read()
    with h5py.File(world / "coordinator" / "run" / "predictions.h5") as simulated:
        for client, name in enumerate(SITES):
            with h5py.File(f"site-{name}/predictions/predictions.h5") as site:
                rows = slice(*simulated["test"]["offsets"][client : client + 2])
                assert site["test"]["p"][...].tobytes() == simulated["test"]["p"][rows].tobytes()


def test_a_changed_copy_is_refused_by_name(world, pfl):
    with (world / "site" / "fed" / "rate.py").open("a") as file:
        file.write("SHARE = 1.0\n")
    process = pfl("--use", "fed/half.py", "--use", "fed/small.py", "federation", "check", "fed")
    assert process.code == 3
    assert "another code of methods/half" in process.err


def test_a_file_in_a_package_is_refused_before_sites_miss_what_it_imports(world, spawn, monkeypatch):
    monkeypatch.chdir(world / "coordinator")
    (world / "coordinator" / "__init__.py").touch()
    process = spawn("--use", "half.py", "--use", "small.py", "federation", "create", "run", "-o", world / "another")
    assert process.wait(120) == 3
    assert "is in a package" in process.stderr.read()
    assert not (world / "another").exists()
