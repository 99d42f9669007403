"""Commands that open a run again report a missing or wrong ``--weights`` file in the same way."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import fields
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import pflcli
from pflcli import cli
from pflcli.__main__ import main
from pflcli.artifacts import codebook
from pflcli.artifacts.reader import open_artifact
from pflcli.core.execution import Execution
from pflcli.options.declaration import Options, TableOptions

LINES = {
    "predict": "predict {run} {d}/x.npy --client {client}",
    "export": "export {run} -o {out} --client {client}",
    "new-client": "new-client {run} {d}/new.npz -o {out} --client zoe",
    "audit": "audit {run} -o {out}",
}
"""A line for each command that has the option."""


@pytest.fixture(scope="module")
def runs_with_weights(small, tmp_path_factory):
    """Runs that started from the weights in a file, with and without a backbone, and at random; and stacks of runs."""
    d = tmp_path_factory.mktemp("weights")
    pflcli.train_global(small.p, d / "g", settings={"model": "mlp", "rounds": 1}, execution=Execution(threads=1))
    state = load_file(d / "g" / "weights.safetensors")
    save_file(state, d / "w.safetensors")
    save_file({name: 2 * value for name, value in state.items()}, d / "other.safetensors")
    new = ("--model", "mlp", "--rounds", 1, "--threads", 1)
    weights = ("--weights", d / "w.safetensors")
    for line in (
        ("personalize", "ditto", small.p, "-o", d / "alone", "--adapter", "lora:2", *new, *weights),
        ("train-global", small.p, "-o", d / "b", *new, *weights),
        ("personalize", "fedavg-plus", d / "b", "-o", d / "backbone", "--threads", 1),
        ("personalize", "ditto", small.p, "-o", d / "random", *new),
        ("personalize", "local", small.p, "-o", d / "local", *new),
        ("stack", d / "alone", d / "random", "-o", d / "stack", "--no-gate"),
        ("stack", d / "local", d / "random", "-o", d / "random-stack", "--no-gate"),
    ):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in line])
        assert not end.value.code, line
    with h5py.File(small.p / "samples.h5") as file:
        np.save(d / "x.npy", file["x"][:3])
        np.savez(d / "new.npz", x=file["x"][:30], y=file["y"][:30])
    client = codebook.read(open_artifact(small.p)).clients[0]
    return SimpleNamespace(d=d, client=client, w=d / "w.safetensors", other=d / "other.safetensors")


def make_line(at, command, run, out):
    return LINES[command].format(run=at.d / run, d=at.d, client=at.client, out=out / "out").split()


def test_cases_cover_every_command_with_a_weights_option():
    assert cli.app
    known = [
        (options.NAME, fields(options))
        for options in [*Options.__subclasses__(), *TableOptions.__subclasses__()]
        if hasattr(options, "NAME")
    ]
    having = {name for name, options in known if any(each.type == "RunWeights" for each in options)}
    assert having == set(LINES)


@pytest.mark.parametrize("run", ["alone", "stack"])
@pytest.mark.parametrize("command", LINES)
def test_hint_names_the_weights_file_that_a_run_needs(runs_with_weights, tmp_path, pfl, command, run):
    if run == "stack" and command in ("export", "new-client"):
        pytest.skip("the command refuses stacks")
    line = make_line(runs_with_weights, command, run, tmp_path)
    for wrong in ([], ["--weights", runs_with_weights.other]):
        ran = pfl(*line, *wrong)
        assert ran.code == 2
        assert str(runs_with_weights.d / "alone") in ran.err
        assert "leave out" not in ran.err
        (hint,) = [part.strip() for part in ran.err.splitlines() if part.strip().startswith("--weights")]
        assert hint == f"--weights {runs_with_weights.w}"
        assert not (tmp_path / "out").exists()
    assert pfl(*line, *shlex.split(hint)).code == 0


@pytest.mark.parametrize("run", ["backbone", "random", "random-stack"])
@pytest.mark.parametrize("command", LINES)
def test_hint_says_to_leave_out_weights_that_a_run_does_not_need(runs_with_weights, tmp_path, pfl, command, run):
    if run == "random-stack" and command in ("export", "new-client"):
        pytest.skip("the command refuses stacks")
    line = make_line(runs_with_weights, command, run, tmp_path)
    for given in (runs_with_weights.other, runs_with_weights.w):
        ran = pfl(*line, "--weights", given)
        if (run, given) == ("backbone", runs_with_weights.w):  # the backbone started from them
            assert ran.code == 0
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            continue
        assert (ran.code, "leave out --weights" in ran.err, "--weights FILE" in ran.err) == (2, True, False)
        assert not (tmp_path / "out").exists()
    assert pfl(*line).code == 0


@pytest.mark.parametrize("command", LINES)
def test_hint_does_not_name_a_missing_or_different_weights_file(runs_with_weights, tmp_path, pfl, command):
    line = make_line(runs_with_weights, command, "alone", tmp_path)
    runs_with_weights.w.rename(runs_with_weights.d / "moved.safetensors")
    try:
        for wrong in ([], ["--weights", runs_with_weights.other]):
            ran = pfl(*line, *wrong)
            assert (ran.code, "--weights FILE, with the weights" in ran.err) == (2, True)
        shutil.copyfile(runs_with_weights.other, runs_with_weights.w)
        ran = pfl(*line, "--weights", runs_with_weights.w)
        assert (ran.code, "--weights FILE, with the weights" in ran.err) == (2, True)
    finally:
        (runs_with_weights.d / "moved.safetensors").replace(runs_with_weights.w)
