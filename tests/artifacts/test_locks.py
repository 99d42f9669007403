"""Locks allow one writer of an output at a time, on one host or several, and are released when their process dies."""

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
from filelock import SoftFileLease

from helpers import FORCE, ROOT, build, listing, spec
from pflcli.artifacts import locks, plain_output
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.make import make
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.errors import ConflictError
from pflcli.core.execution import Execution

WRITE = """
import socket, sys, time
from pathlib import Path
from pflcli.artifacts import locks
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.writer import ArtifactWriter

if sys.argv[2]:
    socket.gethostname = lambda: sys.argv[2]
locks.LEASE_SECONDS, locks.RENEWAL_SECONDS = map(float, sys.argv[3:])
work = ArtifactWriter(Path(sys.argv[1]), ArtifactSpec("partition", {"alpha": 0.3})).prepare()
work.write_checkpoint(b"one")
print("writing", flush=True)
time.sleep(600)
"""


@contextmanager
def start_another_writer(out, host=""):
    """A process that writes ``out``, on this host or on one of another name; it is killed at the end."""
    words = [out, host, str(locks.LEASE_SECONDS), str(locks.RENEWAL_SECONDS)]
    process = subprocess.Popen([sys.executable, "-c", WRITE, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "writing\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def plant_lock(out, host="elsewhere", pid=999999999):
    """Put the lock of another holder there."""
    lock, new = locks.file(out), out.with_name("new")
    new.write_text(f"filelock/2\npid={pid}\nhost={host}\nmode=lease\ntoken=7\nduration={locks.LEASE_SECONDS!r}\n")
    return new.rename(lock)


@pytest.fixture
def shorten_lease(monkeypatch):
    monkeypatch.setattr(locks, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(locks, "RENEWAL_SECONDS", 0.1)


@pytest.fixture(params=[True, False], ids=["names can be exchanged", "names cannot be exchanged"])
def can_exchange(request, monkeypatch):
    """Whether the file system can exchange two names, which NFS cannot."""
    if not request.param:
        monkeypatch.setattr("filelock._soft._exclusive._recovery.exchange_names", lambda source, target: False)
    return request.param


def test_lock_of_a_killed_writer_is_taken_over(tmp_path):
    out = tmp_path / "out"
    with start_another_writer(out) as process:
        with pytest.raises(ConflictError, match=f"another pfl .process {process.pid} on"):
            make(out, spec(), Execution(), build)
        process.send_signal(signal.SIGKILL)
        process.wait()
        saved = []
        again = make(out, spec(), Execution(), lambda work: (saved.append(work.read_checkpoint()), build(work))[1])
    assert (saved, again.decision) == ([b"one"], Decision.RESUME)
    assert listing(tmp_path) == ["out"]
    assert listing(out) == ["a.txt", "manifest.json"]


def test_lock_of_another_host_is_respected_while_it_is_renewed(tmp_path, shorten_lease, can_exchange):
    out = tmp_path / "out"
    with start_another_writer(out, "node7") as process:
        with pytest.raises(ConflictError, match=f"another pfl .process {process.pid} on node7"):
            make(out, spec(), Execution(), build)
        process.kill()
        process.wait()
        messages = []
        lock = locks.acquire(out, messages.append)
        assert len(messages) == 1
        assert f"process {process.pid} on node7" in messages[0]
        lock.release()
    assert make(out, spec(), Execution(), build).decision == Decision.RESUME
    assert listing(tmp_path) == ["out"]


def test_lock_expiry_does_not_compare_clocks_of_hosts(tmp_path, shorten_lease, can_exchange):
    """A time far in the future or in the past says nothing; that it does not move says that the holder is dead."""
    for seconds in (0, 4e9):
        os.utime(plant_lock(tmp_path / "out"), (seconds, seconds))
        locks.acquire(tmp_path / "out", lambda _: None).release()
        assert listing(tmp_path) == []


def test_cleanup_does_not_wait_for_a_lock(tmp_path):
    out = tmp_path / "out"
    make(out, spec(), Execution(), build)
    lock = plant_lock(out)
    assert make(out, spec(), Execution(), build).decision == Decision.UP_TO_DATE
    assert lock.exists()
    with pytest.raises(ConflictError, match="on elsewhere") as error:
        plain_output.replace_file(out, b"")
    assert f"if it was killed, remove {lock}" in error.value.fix[0]
    plant_lock(out, SoftFileLease(tmp_path / "mine").acquire().lock.owner.hostname)
    assert make(out, spec(), Execution(), build).decision == Decision.UP_TO_DATE
    assert listing(tmp_path) == ["out"]


CONTEND = """
import os, random, sys
from pathlib import Path
from pflcli.artifacts import locks
from pflcli.core.errors import ConflictError

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


def test_dying_processes_take_over_a_lock_one_at_a_time(tmp_path):
    words = [sys.executable, "-W", "error", "-c", CONTEND, str(tmp_path / "out")]
    processes = [subprocess.Popen([*words, str(seed)], stderr=subprocess.PIPE) for seed in range(4)]
    for process in processes:
        _, err = process.communicate()
        assert process.returncode == 0, err.decode()
    locks.acquire(tmp_path / "out").release()
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    "create", [Path.touch, Path.mkdir, lambda path: path.write_text("my notes\n")], ids=["empty", "a folder", "a text"]
)
def test_foreign_file_in_place_of_a_lock_is_kept(tmp_path, tree, create):
    create(tmp_path / "out.partial.lock")
    before = tree(tmp_path)
    with pytest.raises(ConflictError, match="does not name a process"):
        make(tmp_path / "out", spec(), Execution(), build)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("step", ["file", "checkpoint", "commit", "end"])
def test_suspended_writer_notices_that_its_lock_was_taken_over(tmp_path, step):
    """It was suspended for longer than the lease; the folder and the lock are its successor's."""
    out = tmp_path / "out"
    work = ArtifactWriter(out, spec()).prepare()
    successor = plant_lock(out)
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
        with pytest.raises(ConflictError, match="lost the lock"):
            steps[step]()
        work.__exit__(ConflictError)
    assert listing(work.folder) == before
    assert successor.exists()


def test_lock_is_released_when_it_is_garbage_collected(tmp_path):
    locks.acquire(tmp_path / "out")
    assert listing(tmp_path) == []


# Laws


def test_package_uses_no_operating_system_file_locks():
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


def test_force_also_requires_the_lock(tmp_path):
    out = tmp_path / "out"
    make(out, spec(alpha=7), Execution(), build)
    with start_another_writer(tmp_path / "other"), pytest.raises(ConflictError, match="another pfl"):
        make(tmp_path / "other", spec(), FORCE, build)
    make(out, spec(), FORCE, build)
    assert listing(out) == ["a.txt", "manifest.json"]


MAKE = """
import sys, time
from pathlib import Path
from pflcli.artifacts import disk
from pflcli.artifacts.make import Built, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.core.execution import Execution

require_place = make.__globals__["require_place"]

def wait(out, spec):  # after the first look at the output, before the lock
    require_place(out, spec)
    print("looked", flush=True)
    sys.stdin.readline()

make.__globals__["require_place"] = wait
out, alpha = Path(sys.argv[1]), float(sys.argv[2])

def build(work):
    print("built", flush=True)
    work.write("a.txt", b"content")
    return Built({"n": 1}, {})

print(make(out, ArtifactSpec("partition", {"alpha": alpha}), Execution(), build).decision)
"""


@pytest.mark.parametrize(("alpha", "code", "printed"), [(0.3, 0, "up to date\n"), (0.1, 1, "")])
def test_output_that_another_process_finished_before_the_lock_is_not_made_again(tmp_path, alpha, code, printed):
    """Both processes look at an empty place; the second waits there until the first has finished."""
    out = tmp_path / "deep" / "out"
    words = [sys.executable, "-c", MAKE, str(out)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, str(alpha)], **pipes) as second:
        assert second.stdout.readline() == "looked\n"
        first = subprocess.run([*words, "0.3"], input="\n", capture_output=True, text=True, check=False)
        assert first.stdout == "looked\nbuilt\nnew\n", first.stderr
        rest, err = second.communicate("\n")
    assert (second.returncode, rest) == (code, printed), err
    assert ("made by another request" in err) == (code == 1)
    assert listing(out.parent) == ["out"]
