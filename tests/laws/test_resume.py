"""A run that was killed or interrupted is resumed, and gives the same bytes as an uninterrupted run."""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import worlds
from helpers import rows, same
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import parameters
from pflcli.core.errors import ConflictError, InputError, LostWorkerError
from pflcli.core.execution import Execution
from pflcli.core.simulation.progress import Best, Progress
from pflcli.workflow.training import checkpoint

ROUNDS = 120
"""Enough that a run does not end between its first checkpoint and the signal; the tests notice if it does."""
SETTINGS = {"model": "mlp", "rounds": ROUNDS, "participation": 0.2, "eval_every": 40}
WORDS = ("--model", "mlp", "--rounds", ROUNDS, "--participation", "0.2", "--eval-every", 40)


@pytest.fixture(scope="module")
def uninterrupted_run(small, tmp_path_factory):
    """The run that was left alone."""
    out = tmp_path_factory.mktemp("whole") / "b"
    train_global(small.p, out, settings=SETTINGS)
    assert len(rows(out)) == ROUNDS
    return out


@pytest.fixture
def run_until_signal(spawn, small, tmp_path):
    """Start a run and send it a signal as soon as its first checkpoint is there."""

    def run(number):
        process = spawn("train-global", small.p, "-o", tmp_path / "b", *WORDS)
        saved = tmp_path / "b.partial" / "checkpoint" / "state.safetensors"
        patience = time.monotonic() + 60
        while not saved.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < patience, "no checkpoint came"
            time.sleep(0.002)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert out == ""
        assert saved.exists(), "it had ended before the signal came"
        assert not (tmp_path / "b").exists()
        return process.returncode, err

    return run


def parse_resumed_round(err):
    return int(re.search(rf"^resuming after round (\d+) of {ROUNDS}$", err, flags=re.M)[1])


def test_killed_run_resumes_with_the_bytes_of_an_uninterrupted_run(
    run_until_signal, pfl, small, uninterrupted_run, tmp_path
):
    code, _ = run_until_signal(signal.SIGKILL)
    assert code == -signal.SIGKILL
    ran = pfl("train-global", small.p, "-o", tmp_path / "b", *WORDS)
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'b'}\n")
    assert 1 <= parse_resumed_round(ran.err) < ROUNDS
    same(tmp_path / "b", uninterrupted_run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_run_prints_the_command_that_resumes_it(run_until_signal, pfl, uninterrupted_run, tmp_path, number):
    code, err = run_until_signal(number)
    assert code == 130
    lines = err[err.index("pfl: ") :].splitlines()
    assert lines[0] == "pfl: interrupted; to resume, run again:"
    assert len(lines) == 2
    assert "Traceback" not in err
    command, *words = shlex.split(lines[1])
    assert command == "pfl"
    ran = pfl(*words)
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'b'}\n")
    assert 1 <= parse_resumed_round(ran.err) < ROUNDS
    same(tmp_path / "b", uninterrupted_run)


def test_run_exits_with_130_when_its_terminal_closes(small, spawn, tmp_path):
    terminal, end = os.openpty()
    endless = ("--model", "mlp", "--rounds", 100_000, "--eval-every", 1000)  # or a quick machine is through before that
    process = spawn("train-global", small.p, "-o", tmp_path / "b", *endless, stderr=end)
    os.close(end)
    wait_for_draft(tmp_path / "b", process)
    time.sleep(1)
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130


@pytest.mark.parametrize("words", [("--engine", "loop"), ("--engine", "stacked"), ("--jobs", 1)])
def test_run_ends_soon_when_interrupted_during_long_training(small, spawn, tmp_path, words):
    process = spawn(
        "personalize", "local", small.p, "--model", "mlp", "--set", "epochs=100000", "-o", tmp_path / "l", *words
    )
    wait_for_draft(tmp_path / "l", process)
    time.sleep(1)  # into the training
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode == 130
    assert "pfl: interrupted" in err


def wait_for_draft(out, process):
    draft = Path(f"{out}.partial") / "draft.json"
    while not draft.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


class Stop:
    """Watches a step and interrupts it after a number of rounds."""

    def __init__(self, after=None, raised=KeyboardInterrupt):
        self.after, self.raised = after, raised
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def detail(self, text):
        pass

    @contextmanager
    def progress(self, label, total, completed=0):
        left = self.after

        def advance(steps, note):
            nonlocal left
            left = None if left is None else left - steps
            if left == 0:
                raise self.raised

        yield advance


def train(at, out, reporter, **kwargs):
    few = {"model": "mlp", "rounds": 6, "participation": 0.5, "eval_every": 2}
    return train_global(at.p, out, settings=few, execution=Execution(reporter=reporter, **kwargs))


def train_and_predict(at, out, reporter, **kwargs):
    few = {"model": "mlp", "rounds": 6, "participation": 0.5, "eval_every": 2}
    return personalize("fedavg", at.p, out, settings=few, execution=Execution(reporter=reporter, **kwargs))


@pytest.mark.parametrize("step", [train, train_and_predict])
@pytest.mark.parametrize("stops", [(1,), (5,), (2, 1, 2), (6,)])
def test_run_interrupted_after_any_round_resumes_with_the_same_bytes(small, tmp_path, step, stops):
    step(small, tmp_path / "whole", Stop())
    rounds_done = 0
    for after in stops:
        with pytest.raises(KeyboardInterrupt):
            step(small, tmp_path / "out", Stop(after))
        rounds_done += after
        assert not (tmp_path / "out").exists()
    reporter = Stop()
    assert step(small, tmp_path / "out", reporter).decision == "resume"
    assert f"resuming after round {rounds_done} of 6" in reporter.lines
    same(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_digest_of_an_expanded_tensor_equals_that_of_a_copy(count):
    values = torch.ones((), dtype=torch.int64).expand(count)
    assert parameters.digest({"pairs": values}) == parameters.digest({"pairs": torch.ones(count, dtype=torch.int64)})
    assert parameters.digest({"pairs": torch.from_numpy(np.broadcast_to(np.int64(1), count).copy())})


def test_checkpoint_keeps_the_order_of_tensor_names(tmp_path):
    """A sum over tensors in another order differs in its last bits, as the norm of an update that is clipped."""
    run = worlds.run("fedavg")
    state = {"global": run.initial_model(), "control": {"head.weight": torch.ones(2), "body.0": torch.ones(1)}}
    best = Best(1, "personal_accuracy", 0.5, copy.deepcopy(state))
    content = checkpoint.pack(run, Progress(state, best=best))
    file = tmp_path / "state.safetensors"
    file.write_bytes(content)
    progress, _, _ = checkpoint.unpack(content, file, run)
    for kept in (progress.state, progress.best.state):
        assert worlds.same(kept, state)
        assert {key: [*names] for key, names in kept.items()} == {key: [*names] for key, names in state.items()}


def test_run_resumes_after_its_last_round_when_a_worker_process_was_killed(small, tmp_path):
    lost = LostWorkerError("a worker process was ended by signal 9")
    with pytest.raises(LostWorkerError):
        train(small, tmp_path / "out", Stop(3, lost))
    reporter = Stop()
    train(small, tmp_path / "out", reporter)
    assert "resuming after round 3 of 6" in reporter.lines


@pytest.mark.parametrize("method", ["local", "fedavg-plus", "knn-per", "knn-per-plus"])
def test_run_interrupted_while_clients_personalize_keeps_finished_clients(small, tmp_path, monkeypatch, method):
    """What a client has answered is kept, and only the others answer when the command is typed again."""
    monkeypatch.setattr("pflcli.core.simulation.predict.MIN_BATCH", 1)
    options = {} if method == "knn-per" else {"epochs": 1}

    def step(out, reporter):
        return personalize(method, small.d, out, options=options, execution=Execution(reporter=reporter))

    step(tmp_path / "whole", Stop())
    for after in (2, 1):
        with pytest.raises(KeyboardInterrupt):
            step(tmp_path / "out", Stop(after))
    reporter = Stop()
    step(tmp_path / "out", reporter)
    assert "resuming after 3 of 6 clients" in reporter.lines
    for name in open_artifact(tmp_path / "whole").manifest.files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.fixture
def unfinished_run(small, tmp_path):
    """The output of a run that was interrupted after two rounds of six."""
    with pytest.raises(KeyboardInterrupt):
        train(small, tmp_path / "out", Stop(2))
    return tmp_path / "out"


def test_force_restarts_at_the_first_round(small, tmp_path, unfinished_run):
    reporter = Stop()
    train(small, unfinished_run, reporter, force=True)
    assert not any("resuming" in line for line in reporter.lines)
    train(small, tmp_path / "whole", Stop())
    same(unfinished_run, tmp_path / "whole")


def test_error_for_an_unfinished_run_of_another_request_lists_the_differences(pfl, small, unfinished_run, tree):
    before = tree(unfinished_run.parent)
    with pytest.raises(ConflictError, match="unfinished run of another request"):
        train_global(small.p, unfinished_run, settings={"model": "mlp", "rounds": 7})
    ran = pfl("train-global", small.p, "-o", unfinished_run, "--model", "mlp", "--rounds", 7, "--participation", 0.5)
    assert ran.code == 4
    assert "settings.rounds: 6 -> 7\n" in ran.err
    assert tree(unfinished_run.parent) == before


def test_a_dry_run_says_that_it_would_resume(small, unfinished_run, tree):
    before = tree(unfinished_run.parent)
    reporter = Stop()
    assert train(small, unfinished_run, reporter, dry_run=True).decision == "dry run: resume"
    assert tree(unfinished_run.parent) == before


def truncate(content):
    return content[:-100]


def flip_bit(at):
    """Flip a bit at a fraction of a file."""

    def change(content):
        place = int(at * len(content))
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    return change


DAMAGE = [lambda content: b"", lambda content: b"\x08\0\0\0\0\0\0\0{}      ", truncate, flip_bit(0.9)]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("change", DAMAGE)
def test_damaged_checkpoint_is_refused_with_the_command_to_remove_it(small, tmp_path, change, forced):
    """What the message says to type begins anew, also where --force would go on with what it began."""
    unfinished = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train(small, unfinished, Stop(2), force=forced)
    path = unfinished.with_name("out.partial") / "checkpoint" / "state.safetensors"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=r"checkpoint .*state.safetensors is damaged") as error:
        train(small, unfinished, Stop(), force=forced)
    assert f"rm -r {unfinished}.partial" in error.value.fix[0]
    shutil.rmtree(f"{unfinished}.partial")
    train(small, unfinished, Stop(), force=forced)
    train(small, tmp_path / "whole", Stop())
    same(unfinished, tmp_path / "whole")


def test_damaged_table_row_is_refused_when_a_run_resumes(small, tmp_path):
    """Rows of clients are checked before a run goes on from them."""

    def step(reporter):
        few = {"model": "mlp", "rounds": 3}
        return personalize(
            "ditto", small.p, tmp_path / "out", settings=few, execution=Execution(reporter=reporter, threads=1)
        )

    with pytest.raises(KeyboardInterrupt):
        step(Stop(1))
    path = tmp_path / "out.partial" / "checkpoint" / "table-0.rows"
    path.write_bytes(flip_bit(0.5)(path.read_bytes()))
    with pytest.raises(InputError, match=r"table-0\.rows is damaged: row \d+ differs from what was written") as error:
        step(Stop())
    assert error.value.fix == (f"remove it (rm -r {tmp_path / 'out.partial'}), and start again",)
