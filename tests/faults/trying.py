"""What the programs in this folder share: tiny inputs, commands in forked processes, and the line that each prints.

A command is run by a fork of this process, which has imported all that commands need and has computed nothing: it takes
tenths of a second rather than seconds.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import csv
import functools
import gc
import hashlib
import importlib
import io
import json
import os
import pkgutil
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout that this file belongs to
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process of one thread is safe to fork

import numpy as np
import typer.main

from pflcli.__main__ import main, run

FAULTS = ("broken", "silent", "tracebacks", "hangs")
PATIENCE = 10.0
"""Seconds after which a command that should have ended counts as one that hangs."""


@dataclass
class Tally:
    """What was tried, and what of it went wrong."""

    name: str
    tried: int = 0
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    notes: list[str] = field(default_factory=list)

    def fault(self, kind: str, detail: str) -> None:
        """Count a fault, and say at once what it was."""
        self.faults[kind] += 1
        print(f"{kind}: {self.name}: {detail}", file=sys.stderr, flush=True)

    def row(self) -> str:
        cells = [self.name, str(self.tried), *(str(self.faults[kind]) for kind in FAULTS), "; ".join(self.notes)]
        return f"| {' | '.join(cells)} |"

    def __bool__(self) -> bool:
        """Whether nothing went wrong."""
        return not any(self.faults.values())


def report(tallies: Sequence[Tally]) -> NoReturn:
    """End the program: 1 if anything went wrong."""
    sys.exit(0 if all(tallies) else 1)


def heading() -> None:
    print(f"| what | tried | {' | '.join(FAULTS)} | notes |\n|---|---:|{'---:|' * len(FAULTS)}---|", flush=True)


def arguments(text: str | None, count: int, meaning: str, **choices: Sequence[str]) -> argparse.Namespace:
    """Parse ``[COUNT] [--seed N]`` and, for each of ``choices``, ``--only NAME ...``."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=count, help=f"{meaning} [default: {count}]")
    parser.add_argument("--seed", type=int, default=0)
    for name, values in choices.items():
        parser.add_argument(f"--{name}", nargs="+", choices=values, default=list(values))
    return parser.parse_args()


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """Give a folder that goes at the end; not a TemporaryDirectory, which every fork that ends would remove."""
    folder = Path(tempfile.mkdtemp(prefix="pfl-faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


PACKAGES = (
    *(
        "cli",
        "commands",
        "workflow.training",
        "workflow.prediction",
        "plugins.audits",
        "artifacts.kinds",
        "methods",
        "models",
        "core.schemes",
    ),
    *("data.preparation", "data.formats", "data.datasets"),
    *("evaluation", "evaluation.presentation", "evaluation.charts", "plugins.page"),
)
"""What commands import before they compute."""


def warm() -> None:
    """Do all that commands do before they compute: import what they need, and describe themselves to Typer."""
    for package in PACKAGES:
        code = importlib.import_module(f"pflcli.{package}")
        for module in pkgutil.iter_modules(code.__path__):
            importlib.import_module(f"{code.__name__}.{module.name}")
    for name in ("faiss", "pandas", "h5py", "rich.progress"):
        importlib.import_module(name)
    typer.main.get_command = functools.cache(typer.main.get_command)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
        main(["partition", "writers", "-o", "nowhere", "--dry-run"])
    gc.collect()
    gc.freeze()  # or forks copy the pages of all that a collection looks at


@dataclass
class Ended:
    """How a command ended: its exit code, minus the signal that killed it, what it said, and after how long."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False

    def talks_nonsense(self) -> bool:
        """Whether a user was shown a traceback, or a bug."""
        return "Traceback" in self.err or "a bug" in self.err or self.code == 1

    def __str__(self) -> str:
        return f"exit {self.code}: {self.err.strip()[-300:]!r}"


class Command:
    """``pfl WORDS`` in a forked process and a session of its own; ``first`` is called there before."""

    def __init__(self, words: Sequence[object], folder: Path, first: Callable[[], None] | None = None) -> None:
        self._out, self._err = (os.memfd_create(name) for name in ("out", "err"))
        self._ready, ready = os.pipe()
        self._began = time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._be(list(map(str, words)), folder, first, ready)
        os.close(ready)
        self._handle = os.pidfd_open(self.pid)

    def _be(self, words: list[str], folder: Path, first: Callable[[], None] | None, ready: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(self._out, 1)
            os.dup2(self._err, 2)
            sys.argv = ["pfl", *words]
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            if first is not None:
                first()
            os.close(self._ready)
            os.close(ready)  # which its parent waits for
            run()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            threading._shutdown()  # type: ignore[attr-defined]  # as Python ends: threads first
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def started(self) -> None:
        """Wait until the command itself has begun."""
        os.read(self._ready, 1)
        os.close(self._ready)

    def runs(self, seconds: float) -> bool:
        """Wait so long at most, and return whether it still runs."""
        return not select.select([self._handle], [], [], max(seconds, 0))[0]

    def send(self, number: int) -> None:
        signal.pidfd_send_signal(self._handle, number)

    def end(self, seconds: float) -> Ended:
        """Wait for the end, and kill what has not come to one by then."""
        hung = self.runs(seconds)
        if hung:
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        took = time.monotonic() - self._began
        outputs = []
        for handle in (self._out, self._err):
            os.lseek(handle, 0, os.SEEK_SET)
            with os.fdopen(handle, "rb") as file:
                outputs.append(file.read().decode(errors="replace"))
        os.close(self._handle)
        with contextlib.suppress(OSError):
            os.close(self._ready)
        return Ended(os.waitstatus_to_exitcode(status), *outputs, took, hung)


def pfl(words: Sequence[object], folder: Path, seconds: float = 120) -> Ended:
    """Run a command to its end."""
    return Command(words, folder).end(seconds)


def within(words: Sequence[object], folder: Path) -> Ended:
    """Run a command in this process."""
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    code: object = 0
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = end.code
    return Ended(int(str(code or 0)), out.getvalue(), err.getvalue(), time.monotonic() - began)


def children(session: int) -> list[int]:
    """Return the processes of a session that are alive."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, *fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == session and state != "Z":
                pids.append(int(entry.name))
    return pids


def wait_for_end(session: int, seconds: float = 5.0) -> bool:
    """Wait for the end of all processes of a session; kills what is left of them."""
    patience = time.monotonic() + seconds
    while left := children(session):
        if time.monotonic() > patience:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.05)
    return True


_DURATION = re.compile(r" in a run of [\d.,]+ s")
"""The time in the sentence on costs."""


def content(folder: Path) -> dict[str, str]:
    """Return a hash of every file of an artifact, but for wall-clock and CPU seconds, which nobody can repeat."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(_without_seconds(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _without_seconds(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.name == "manifest.json":
        manifest = json.loads(raw)
        inputs = [(item["role"], item["fingerprint"]) for item in manifest["inputs"]]
        facts = [manifest[key] for key in ("kind", "schema", "fingerprint", "request", "code", "summary")]
        return json.dumps([*facts, inputs, [*manifest["files"]]]).encode()
    if path.suffix == ".csv":
        rows = [
            {key: value for key, value in row.items() if "seconds" not in (key or "")}
            for row in csv.DictReader(io.StringIO(raw.decode()))
        ]
        return json.dumps(rows).encode()
    if path.name in ("metrics.json", "trials.json"):
        return json.dumps(_timeless(json.loads(raw))).encode()
    if path.suffix == ".md":
        lines = [line.split("|") for line in _DURATION.sub("", raw.decode()).splitlines()]
        timed = {place for line in lines for place, cell in enumerate(line) if "seconds" in cell and len(line) > 2}
        return json.dumps([[c for place, c in enumerate(line) if place not in timed] for line in lines]).encode()
    return raw


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if "seconds" not in key}
    if isinstance(value, str):
        return _DURATION.sub("", value)
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def leftovers(folder: Path) -> list[str]:
    """Return what a writer has left beside its output or in it."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if is_leftover(path)]


def is_leftover(path: Path) -> bool:
    """Return whether a path has a name that a writer uses until its output is complete."""
    names = r".*(\.partial(\.lock(\.[\w.]+)?|\.old)?|\.tmp|draft\.json|checkpoint)"
    return re.fullmatch(names, path.name) is not None


def inputs(root: Path) -> None:
    """Make a dataset of six clients in two groups and every artifact that a command starts from, in ``root``."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 120)
    x = (draw.normal(size=(120, 5)) + 2.0 * np.eye(5)[y]).astype(np.float32)
    np.savez(root / "data.npz", x=x, y=y, owner=y)
    clusters = ("--scheme", "clusters", "--clients", 6, "--set", "groups=2", "--set", "kind=labels")
    few = ("--model", "mlp", "--rounds", 2, "--participation", 0.5, "--batch-size", 8, "--threads", 1)
    for words in (
        ("import", "data.npz", "-o", "data"),
        ("partition", "data", *clusters, "-o", "p"),
        ("train-global", "p", "-o", "b", *few),
        ("extract", "b", "-o", "e"),
        ("build-datastore", "e", "-o", "d"),
        ("personalize", "knn-per", "d", "-o", "knn"),
        ("personalize", "fedavg", "p", "-o", "fedavg", *few),
        ("evaluate", "knn", "fedavg", "-o", "ev"),
    ):
        ended = pfl(words, root)
        if ended.code:
            raise SystemExit(f"{' '.join(map(str, words))}: {ended}")
