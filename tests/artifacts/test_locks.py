"""Locks: one writer of an output at a time, on one host or on several; who is dead leaves nothing in the way."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers import FORCE, ROOT, build, listing, spec
from pflcli.artifacts import locks
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.make import make
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.errors import ConflictError
from pflcli.execution import Execution

WRITE = """
import sys, time
from pathlib import Path
from pflcli.artifacts import locks
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.writer import ArtifactWriter

name = sys.argv[2]
if name:
    locks.host_name = lambda: name
locks.RENEWAL_SECONDS = 0.1
work = ArtifactWriter(Path(sys.argv[1]), ArtifactSpec("partition", {"alpha": 0.3}))
work.write_checkpoint(b"one")
print("writing", flush=True)
time.sleep(600)
"""


@contextmanager
def another_writer(out, host=""):
    """A process that writes ``out``, on this host or on one of another name; it is killed at the end."""
    process = subprocess.Popen([sys.executable, "-c", WRITE, out, host], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "writing\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def ended_pid():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def plant(out, **fields):
    """Put the lock of another holder there; returns its entry."""
    entry = locks.folder(out) / locks.Holder.create()._replace(**fields).entry
    entry.parent.mkdir()
    entry.touch()
    return entry


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.05)


def test_a_writer_that_is_killed_holds_up_nobody(tmp_path):
    out = tmp_path / "out"
    with another_writer(out) as process:
        with pytest.raises(ConflictError, match=f"another pfl .process {process.pid} on"):
            make(out, spec(), Execution(), build)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and its parent has not noticed yet
        saved = []
        again = make(out, spec(), Execution(), lambda work: (saved.append(work.read_checkpoint()), build(work))[1])
    assert (saved, again.decision) == ([b"one"], Decision.RESUME)
    assert listing(tmp_path) == ["out"]
    assert listing(out) == ["a.txt", "manifest.json"]


def test_a_writer_on_another_host_is_waited_for_while_it_renews_its_lock(tmp_path, short_lease):
    out = tmp_path / "out"
    with another_writer(out, "node7") as process:
        with pytest.raises(ConflictError, match=f"another pfl .process {process.pid} on node7"):
            make(out, spec(), Execution(), build)
        process.kill()
        process.wait()
        messages = []
        lock = locks.acquire(out, messages.append)
        assert f"process {process.pid} on node7" in messages[0]
        lock.release()
    assert make(out, spec(), Execution(), build).decision == Decision.RESUME
    assert listing(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("fields", "is_dead"),
    [({}, False), ({"started": "1"}, True), ({"started": ""}, False), ({"pid": "999999999"}, True)],
    ids=["alive", "a later process of the same number", "its start is not known", "no such process"],
)
def test_a_holder_on_this_host_is_dead_if_its_process_is(tmp_path, fields, is_dead):
    entry = plant(tmp_path / "out", **fields)
    if is_dead:
        locks.acquire(tmp_path / "out").release()
        assert listing(tmp_path) == []
    else:
        with pytest.raises(ConflictError):
            locks.acquire(tmp_path / "out")
        assert entry.exists()


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="ps is not installed")
def test_processes_are_told_apart_without_proc(monkeypatch):
    read_bytes = Path.read_bytes

    def without_proc(path):
        if path.is_relative_to("/proc"):
            raise FileNotFoundError
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", without_proc)
    started = locks._start_time(os.getpid())
    assert len(started) == 16
    assert locks._start_time(os.getpid()) == started
    assert locks._start_time(ended_pid()) is None


def test_clocks_of_hosts_are_not_compared(tmp_path, short_lease):
    """A time far in the future or in the past says nothing; that it does not move says that the holder is dead."""
    for seconds in (0, 4e9):
        entry = plant(tmp_path / "out", host="elsewhere")
        os.utime(entry, (seconds, seconds))
        locks.acquire(tmp_path / "out", lambda _: None).release()
        assert listing(tmp_path) == []


def test_tidying_waits_for_nobody(tmp_path):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    entry = plant(out, host="elsewhere")
    assert make(out, spec(), Execution(), build).decision == Decision.UP_TO_DATE
    assert entry.exists()
    entry.rename(entry.with_name(locks.Holder.create()._replace(pid=str(ended_pid())).entry))
    assert make(out, spec(), Execution(), build).decision == Decision.UP_TO_DATE
    assert listing(tmp_path) == ["out"]


CONTEND = """
import os, random, sys
from pathlib import Path
from pflcli.artifacts import locks
from pflcli.errors import ConflictError

out, draw, acquired = Path(sys.argv[1]), random.Random(sys.argv[2]), 0
while acquired < 8:
    child = os.fork()
    if child == 0:
        try:
            lock = locks.acquire(out)
        except ConflictError:
            os._exit(1)
        os.close(os.open(out, os.O_CREAT | os.O_EXCL))  # fails if another one has the lock too
        out.unlink()
        if draw.random() < 0.5:
            lock.release()
        os._exit(0)  # or dies with it
    draw.random()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        sys.exit(code)
    acquired += code == 0
"""


def test_many_processes_that_die_take_over_from_each_other_one_at_a_time(tmp_path):
    words = [sys.executable, "-W", "error", "-c", CONTEND, str(tmp_path / "out")]
    processes = [subprocess.Popen([*words, str(seed)], stderr=subprocess.PIPE) for seed in range(4)]
    for process in processes:
        _, err = process.communicate()
        assert process.returncode == 0, err.decode()
    locks.acquire(tmp_path / "out").release()
    assert listing(tmp_path) == []


DIE = """
import os, sys
from pathlib import Path
from pflcli.artifacts import locks

left = int(sys.argv[2])

def dying(step):
    def stepping(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return step(*args, **kwargs)
    return stepping

for name in ("mkdir", "touch", "rename", "unlink", "rmdir"):
    setattr(Path, name, dying(getattr(Path, name)))
locks.acquire(Path(sys.argv[1])).release()
"""


@pytest.mark.parametrize("is_stale", [False, True], ids=["a new lock", "a dead holder's"])
def test_wherever_it_is_killed_the_next_one_gets_the_lock_and_nothing_is_left(tmp_path, is_stale):
    survived, code, out = 0, 9, tmp_path / "out"
    while code == 9:
        if is_stale:
            plant(out, pid="999999999")
        code = subprocess.run([sys.executable, "-c", DIE, str(out), str(survived)], check=False).returncode
        locks.acquire(out).release()
        assert listing(tmp_path) == []
        survived += 1
    assert code == 0
    assert survived == (4 if is_stale else 6)


@pytest.mark.parametrize("create", [Path.touch, Path.mkdir], ids=["a file", "a folder"])
def test_what_is_in_the_place_of_a_lock_stays(tmp_path, tree, create):
    create(tmp_path / "out.partial.lock")
    prepared = tmp_path / "out.partial.lock.0123abcd"
    prepared.mkdir()
    for folder in (tmp_path / "out.partial.lock", prepared):
        if folder.is_dir():
            (folder / "notes.txt").touch()
    before = tree(tmp_path)
    with pytest.raises(ConflictError, match="not made by pfl"):
        make(tmp_path / "out", spec(), Execution(), build)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("step", ["file", "checkpoint", "commit", "end"])
def test_a_writer_that_was_taken_for_dead_notices(tmp_path, step):
    """It was suspended for longer than the lease; the folder and the lock are its successor's."""
    out = tmp_path / "out"
    work = ArtifactWriter(out, spec())
    (entry,) = locks.folder(out).iterdir()
    successor = entry.rename(entry.with_name(locks.Holder.create().entry))
    before = listing(work.folder)
    steps = {
        "file": lambda: work.write("a.txt", b""),
        "checkpoint": lambda: work.write_checkpoint(b""),
        "commit": lambda: work.commit({}, {}),
        "end": lambda: work.__exit__(None),
    }
    if step == "end":
        steps[step]()
    else:
        with pytest.raises(ConflictError, match="another pfl took over"):
            steps[step]()
        work.__exit__(ConflictError)
    assert listing(work.folder) == before
    assert successor.exists()


def test_a_lock_that_nobody_refers_to_is_released(tmp_path):
    locks.acquire(tmp_path / "out")
    assert listing(tmp_path) == []


# Laws


def test_no_file_is_locked_by_the_system():
    """Some network file systems refuse such locks, and some grant them to everybody."""
    opened = 0
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) fcntl|\blockf?\(", text, re.MULTILINE), path
        for node in ast.walk(ast.parse(text)) if "h5py.File(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "h5py.File":
                options = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert options.get("locking") == "False", f"{path}: line {node.lineno}"
                opened += 1
    assert opened >= 4


def test_force_needs_the_lock_too(tmp_path):
    out = tmp_path / "out"
    make(out, spec(alpha=7), Execution(), build)
    with another_writer(tmp_path / "other"), pytest.raises(ConflictError, match="another pfl"):
        make(tmp_path / "other", spec(), FORCE, build)
    make(out, spec(), FORCE, build)
    assert listing(out) == ["a.txt", "manifest.json"]
