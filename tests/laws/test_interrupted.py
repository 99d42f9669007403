"""A run of any method that is interrupted at any line and resumed gives the same bytes as an uninterrupted run."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import pflcli
from helpers import CLASSIFYING, same
from pflcli.commands import personalize
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.train_global import train_global
from pflcli.core import registry
from pflcli.core.execution import Execution
from pflcli.core.simulation import loop
from pflcli.workflow.training import checkpoint, checkpointed

METHODS = CLASSIFYING
PACKAGE = str(Path(pflcli.__file__).parent)
FEW = {"model": "mlp", "rounds": 2, "participation": 0.5, "batch_size": 8, "eval_every": 1, "report": "best"}


@pytest.fixture(scope="module")
def tiny_datastore(tmp_path_factory):
    """A datastore, with all that it stands on, of six clients in two groups."""
    root, draw = tmp_path_factory.mktemp("tiny"), np.random.default_rng(0)
    y = draw.integers(0, 3, 120)
    x = (draw.normal(size=(120, 5)) + 2.0 * np.eye(5)[y]).astype(np.float32)
    np.savez(root / "d.npz", x=x, y=y)
    import_data(root / "d.npz", root / "data", client="none")
    partition(str(root / "data"), root / "p", scheme="clusters", clients=6, options={"groups": 2, "kind": "labels"})
    train_global(root / "p", root / "b", settings={**FEW, "rounds": 1})
    extract(root / "b", root / "e")
    build_datastore(root / "e", root / "d")
    return root


class Lines:
    """Our lines that run in the phases of a run, and how often; the ``count``-th time at ``place`` it is interrupted.

    Of rounds, only those after the first: before these nothing is kept.
    """

    def __init__(self, place=None, count=0):
        self.place, self.left = place, count
        self.ran = Counter()
        self.phase = ""

    @contextmanager
    def followed(self):
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield self
        finally:
            sys.settrace(before)

    def _call(self, frame, event, arg):
        code = frame.f_code
        if code is loop.play_round.__code__ and frame.f_locals["t"] > 0:
            self.phase = "rounds"
        elif code is checkpointed.predict_all.__code__:
            self.phase = "answers"
        is_watched = self.phase or code is checkpointed.run_rounds.__code__
        return self._line if is_watched and code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame, event, arg):
        if event == "return" and frame.f_code in (checkpointed.run_rounds.__code__, checkpointed.predict_all.__code__):
            self.phase = ""
        if event == "line" and self.phase:
            place = (self.phase, frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno)
            self.ran[place] += 1
            if place == self.place:
                self.left -= 1
                if not self.left:
                    raise KeyboardInterrupt
        return self._line


def hash_key(*key):
    """A number that belongs to a key, as if drawn."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")


def check_interrupted_runs(method, tiny, out, monkeypatch, turns, *, keep_every_round):
    """Interrupt runs in both phases, each where a hash of the method and the turn says, and compare what they end with.

    Without ``keep_every_round`` a run keeps nothing until it is interrupted.
    """
    monkeypatch.setattr("pflcli.core.simulation.predict.MIN_BATCH", 2)
    if keep_every_round:
        monkeypatch.setattr(checkpoint, "_MAX_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    else:
        monkeypatch.setattr(checkpoint.Checkpoints, "_offer", lambda self: None)
    needs = registry.card("methods", method).facts["NEEDS"]
    settings = {} if "backbone" in needs else {**FEW, "dropout": 0.4 * (hash_key(method, "dropout") % 4 == 0)}

    def run(name, lines=None):
        # Interrupted on the last line of a block under no_grad, Python leaves it without restoring the mode; a command
        # ends then, and here the next test goes on.
        with torch.enable_grad(), lines.followed() if lines else nullcontext():
            personalize.personalize(method, tiny / "d", out / name, settings=settings, execution=Execution(threads=1))

    uninterrupted = Lines()
    run("whole", uninterrupted)
    for turn in turns:
        for phase in ("rounds", "answers"):
            places = sorted(place for place in uninterrupted.ran if place[0] == phase)
            if places:
                place = places[hash_key(method, turn, phase) % len(places)]
                count = 1 + hash_key(method, turn, *place[:2]) % uninterrupted.ran[place]
                with pytest.raises(KeyboardInterrupt):
                    run("again", Lines(place, count))
        run("again")
        same(out / "again", out / "whole")
        shutil.rmtree(out / "again")


@pytest.mark.parametrize("method", METHODS)
def test_run_interrupted_at_one_line_ends_with_the_same_bytes_when_resumed(
    method, tiny_datastore, tmp_path, monkeypatch
):
    check_interrupted_runs(
        method, tiny_datastore, tmp_path, monkeypatch, turns=[0], keep_every_round=hash_key(method) % 4 == 0
    )


_BEGINS = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "pflcli.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""

_ENDS = """
import atexit, os, signal, sys
sys.argv[1:] = ["--version"]
atexit.register(lambda: os.kill(os.getpid(), getattr(signal, sys.argv.pop(0))))
"""


_WITHIN = """
import os, signal, sys, time, weakref
from pflcli import cli

def command(*_, **__):
    thing = set()
    gone = weakref.ref(thing, lambda _: os.kill(os.getpid(), getattr(signal, sys.argv[0])))
    del thing  # Python ignores what is raised meanwhile
    time.sleep(30)

cli.app = command
"""


def run_pfl_with_signal(before, number):
    """Run the process ``pfl`` after some lines that find the name of a signal in sys.argv[0]."""
    lines = f"import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{before}"
    lines += f"sys.argv[0] = {number!r}\nfrom pflcli.__main__ import run\nrun()"
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("before", "number", "code"),
    [(_BEGINS, "SIGINT", 130), (_ENDS, "SIGINT", -signal.SIGINT), (_ENDS, "SIGTERM", -signal.SIGTERM)],
    ids=["begins", "ends, SIGINT", "ends, SIGTERM"],
)
def test_pfl_shows_no_traceback_when_interrupted_while_python_starts_or_exits(before, number, code):
    ended = run_pfl_with_signal(before, number)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_pfl_exits_with_130_when_python_would_ignore_the_interruption(number):
    ended = run_pfl_with_signal(_WITHIN, number)
    assert ended.returncode == 130
    assert ended.stderr.startswith("pfl: interrupted; to resume, run again:")


@pytest.mark.long
@pytest.mark.parametrize("keep_every_round", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_run_interrupted_at_many_lines_ends_with_the_same_bytes_when_resumed(
    method, tiny_datastore, tmp_path, monkeypatch, keep_every_round
):
    check_interrupted_runs(
        method, tiny_datastore, tmp_path, monkeypatch, turns=range(1, 21), keep_every_round=keep_every_round
    )
