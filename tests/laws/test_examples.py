"""The examples in the help of all commands run, one after the other: together they are a chain."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer.main

from originals import write_network, write_weights
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.cli import app
from pflcli.cli.from_options import walk_commands
from pflcli.plugins.demo import demo

COMMANDS = dict(walk_commands(typer.main.get_command(app)))
BRIEF = ["--model", "mlp", "--rounds", "1"]
SMALLER = {
    "pfl partition writers": ["--clients", "6"],
    "pfl embed writers --encoder onnx": ["--size", "32"],
    "pfl embed writers --encoder torchvision": ["--size", "8"],
    "pfl train-global": BRIEF,
    "pfl compare": [*BRIEF, "--seeds", "0"],
    "pfl tune ditto": BRIEF,
}
"""What is added to examples by their first words, so that they take no minutes."""
FIRST = (
    *("import", "embed", "partition", "train-global", "extract", "build-datastore", "update-datastore"),
    *("personalize", "stack", "evaluate", "audit", "compare", "demo", "tune"),
)
"""Commands in an order in which examples find what earlier ones made."""

WAITING = tuple(name for name in COMMANDS if name.startswith(("federation ", "site ")))
"""Commands that wait for each other: tests/plugins/sites/test_processes.py runs them side by side."""

CLAIMS = """
[experiments.writers]
dataset = "writers"
partition = { clients = 6 }
training = { model = "logistic", rounds = 1 }
[claims.personal]
says = "Local models are better than the global one"
on = ["writers"]
method = "local"
direction = "higher"
against = ["fedavg"]
seeds = 1
"""


def write_inputs():
    """Write the files that examples read and no example makes."""
    write_network(Path("net.onnx"))
    write_weights(Path("w.pt"))
    Path("claims.toml").write_text(CLAIMS)
    draw = np.random.default_rng(0)
    for name in ("visits.csv", "newer.csv"):
        rows = [[f"h{row % 3}", row % 2, *draw.normal(size=2).round(3)] for row in range(60)]
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows([["hospital", "outcome", "age", "pulse"], *rows])


def write_images():
    """Write images as the partition of the examples has them, for its models to answer and a client to bring."""
    images = partitions.read(open_artifact("runs/p"))
    np.savez("digits.npz", x=images.x[:20])
    use = np.resize(["train", "train", "val", "test"], 40)
    np.savez("me.npz", x=images.x[:40], y=images.y[:40], use=use)
    write_probabilities(images)


def write_probabilities(partition):
    """Write the probabilities of another tool for the test samples of a partition."""
    block = np.repeat(np.arange(3 * len(partition.names)), np.diff(partition.offsets))
    test = block % 3 == 2
    p = np.random.default_rng(0).dirichlet(np.ones(partition.classes), size=test.sum())
    client, sample = np.asarray(partition.names)[block[test] // 3], partition.sample[test]
    np.savez("p.npz", client=client, sample=sample, split=np.full(test.sum(), "test"), p=p)
    with Path("p.csv").open("w", newline="") as file:
        heading = ["client", "sample", "split", *(f"p({c})" for c in range(partition.classes))]
        rows = [[who, which, "test", *values] for who, which, values in zip(client, sample, p, strict=True)]
        csv.writer(file).writerows([heading, *rows])


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_ends_with_its_examples(pfl, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in pfl(*name.split(), "--help").out.splitlines() if line.strip()]
    examples = COMMANDS[name].examples
    assert lines[-3:] == ["Examples:", *examples]
    for example in examples:
        assert example.startswith(f"pfl {name}")
        assert len(example) <= 78


def replace_options(words, others):
    """Return a command line with the ``others``, pairs of an option and its value, in place of the same options."""
    for option in others[::2]:
        if option in words:
            place = words.index(option)
            words = [*words[:place], *words[place + 2 :]]
    return [*words, *others]


@pytest.mark.usefixtures("drawn_pictures")
def test_help_examples_of_all_commands_run(pfl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, "rounds": 1})
    monkeypatch.setattr(
        "pflcli.plugins.page.charts.render_still", lambda chart: "data:image/png;base64,AA=="
    )  # takes seconds
    write_inputs()
    assert pfl("partition", "writers", "-o", "runs/p2", "--clients", "6", "--fractions", "0.5,0.25,0.25").code == 0
    for name in [*FIRST, *(name for name in COMMANDS if name not in (*FIRST, *WAITING))]:
        for example in COMMANDS[name].examples:
            words = shlex.split(example)[1:]
            smaller = [word for start, added in SMALLER.items() if example.startswith(start) for word in added]
            words = replace_options(words, smaller)
            words += ["--threads", "1"] if any("--threads" in param.opts for param in COMMANDS[name].params) else []
            result = pfl(*words)
            assert result.code == 0, f"{example}: {result.err}"
            if example == "pfl partition writers -o runs/p":
                write_images()
