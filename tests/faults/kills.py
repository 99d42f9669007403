"""Kill every command at random moments with SIGKILL, SIGTERM and SIGINT, type it again, and compare all bytes.

    python tests/faults/kills.py [COUNT] [--seed N] [--only NAME ...]

COUNT kills for each command: half of them at a moment of its run, half at one of its file operations. A command is
killed up to three times in a row before it may end. Then its output has the bytes of a run that was left alone, nothing
is left beside it, no worker process is alive; and whenever it was killed, the old or the new artifact is complete, at
OUT or, between two renames, beside it. Worker processes are forks, too. ``cold`` kills real processes, from the moment
when Python starts.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path

import trying
from pflcli.core.engine.executors import processes
from trying import Command, Tally

FEW = ("--model", "mlp", "--rounds", 12, "--participation", 0.5, "--batch-size", 8, "--threads", 1)
SIX = ("--scheme", "clusters", "--clients", 6, "--set", "groups=2", "--set", "kind=labels")
METHODS = {"local": ("epochs=9",), "fedavg": (), "ditto": (), "apfl": (), "fedham": (), "panm": (), "fedem": ()}
COMMANDS: dict[str, tuple[object, ...]] = {
    "import": ("import", "IN/data.npz"),
    "partition": ("partition", "IN/data", *SIX),
    "train-global": ("train-global", "IN/p", *FEW),
    "train-global --jobs 2": ("train-global", "IN/p", *FEW, "--jobs", 2),
    "train-global --force": ("train-global", "IN/p", *FEW, "--force"),
    "extract": ("extract", "IN/b"),
    "extract --force": ("extract", "IN/b", "--force"),
    "build-datastore": ("build-datastore", "IN/e"),
    "update-datastore": ("update-datastore", "IN/d", "IN/e"),
    "personalize knn-per": ("personalize", "knn-per", "IN/d"),
    "personalize fedavg-plus": ("personalize", "fedavg-plus", "IN/b"),
    **{
        f"personalize {name}": ("personalize", name, "IN/p", *FEW, *(f"--set={option}" for option in options))
        for name, options in METHODS.items()
    },
    "personalize ditto --jobs 2": ("personalize", "ditto", "IN/p", *FEW, "--jobs", 2),
    "evaluate": ("evaluate", "IN/knn", "IN/fedavg"),
    "sweep": ("sweep", "IN/e"),
    "stack": ("stack", "IN/knn", "IN/fedavg"),
    "compare": ("compare", "IN/p", "--methods", "fedavg,local,knn-per,stack", *FEW),
    "tune": ("tune", "local", "IN/p", *FEW, "--search", "training.epochs=1,2"),
    "audit": ("audit", "IN/fedavg"),
    "new-client": ("new-client", "IN/fedavg", "IN/data.npz", "--client", "late"),
    "predict": ("predict", "IN/fedavg", "IN/data.npz", "--client", "client-0000", "--force"),
    "export": ("export", "IN/knn", "--client", "client-0000", "--force"),
    "report": ("report", "IN/ev"),
    "cold train-global": ("train-global", "IN/p", *FEW),
    "compare --jobs 2": ("compare", "IN/p", "--methods", "fedavg,ditto,stack", *FEW, "--jobs", 2),
}
WITHOUT_KILLS = {
    "demo": "it is compare on a small dataset",
    "verify": "it is partition and compare, and then a table; tests/plugins/claims/test_verify.py interrupts it",
    **dict.fromkeys(
        ("federation run", "site check", "site serve", "site answer"),
        "tests/plugins/sites kills server and sites before each write",
    ),
    "site join": "it is import, partition and site check; tests/plugins/sites/test_join.py interrupts it",
    "federation create": "it writes one small file, as partition writes large ones",
    **dict.fromkeys(("federation columns", "site columns", "site release"), "it writes one small file, in one step"),
    **dict.fromkeys(("federation check", "federation status"), "it prints"),
    "import-predictions": "it writes predictions in one step, as stack does",
    "replay": "it runs commands that are killed here",
    "embed": "tests/commands/test_embed.py interrupts it, and resumes it from its batches",
    "track": "tests/plugins/tracking/test_track.py runs it again: it writes the files of other tools",
    "new": "it writes one file, in one step",
    "check": "it prints",
    "show": "it prints",
    "list": "it prints",
    "doctor": "it prints",
}
"""Commands that are not killed here, each with the reason."""
OUTPUTS = {"predict": "out.csv", "report": "out.html"}
"""Names of outputs that are not artifacts; others are called ``out``."""
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Worker:
    """A worker process as ``processes`` starts it, but forked from here: it need not import anything."""

    def __init__(self, words: list[str], pass_fds: tuple[int, ...], **_: object) -> None:
        parent, (pipe,) = os.getpid(), pass_fds
        self._ended, self._code = False, 0
        self._pid = os.fork()
        if self._pid == 0:
            os.closerange(3, pipe)
            os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            threading.Thread(target=processes._end_with, args=(parent,), daemon=True).start()
            try:
                processes.serve(connection.Connection(pipe))
            finally:
                os._exit(0)

    def wait(self, timeout: float | None = None) -> int:
        patience = time.monotonic() + (timeout or 3600)
        while not self._ended:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._ended, self._code = bool(pid), os.waitstatus_to_exitcode(status)
            if time.monotonic() > patience:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            time.sleep(0.01)
        return self._code

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


class Operations:
    """Counts a command's file operations, in memory shared with it; lets it signal itself at one of them."""

    def __init__(self) -> None:
        self._count = mmap.mmap(-1, 8)

    @property
    def count(self) -> int:
        return int.from_bytes(self._count[:], "little")

    def reporter(self, at: int = 0, number: int = 0) -> Callable[[], None]:
        """Return what the command has to call first; its own operations count, and not those of its workers."""
        command = 0

        def hook(event: str, _: object) -> None:
            if event in OPERATIONS and os.getpid() == command:
                self._count[:] = (self.count + 1).to_bytes(8, "little")
                if self.count == at:
                    os.kill(command, number)

        def first() -> None:
            nonlocal command
            command, self._count[:] = os.getpid(), bytes(8)
            processes.subprocess.Popen = Worker  # type: ignore[misc,assignment]
            sys.addaudithook(hook)

        return first


class Tries:
    """Kills one command over and over."""

    def __init__(self, name: str, root: Path, draw: random.Random) -> None:
        self.tally = Tally(name)
        self.words = [str(word).replace("IN/", str(root / "in") + "/") for word in COMMANDS[name]]
        self.words += ["-o", OUTPUTS.get(self.words[0], "out")]
        self.draw, self.root = draw, root / name.replace(" ", "_")
        self.operations, self.cold = Operations(), name.startswith("cold")
        self.early = 0
        self.whole = self.root / "whole"
        self.whole.mkdir(parents=True)
        ended = self._run(self.whole)
        if ended.code:
            raise SystemExit(f"{name}: {ended}")
        self.count = self.operations.count
        self.expected, self.standing = self._outputs(self.whole), {}
        self.names = sorted(path.name for path in self.whole.iterdir())
        self.seconds = [ended.seconds]
        self.old: Path | None = None
        if name.endswith("--force"):
            self.old = self.root / "old"
            self.old.mkdir()
            trying.pfl(["import", root / "in" / "data.npz", "--client", "none", "-o", "out"], self.old)
            self.standing = self._outputs(self.old)

    def _run(self, folder: Path) -> trying.Ended:
        return self._command(folder).end(120)

    def _command(self, folder: Path) -> Command:
        return Command(self.words, folder, self._anew if self.cold else self.operations.reporter())

    def _anew(self) -> None:
        """Be a process that has imported nothing yet."""
        os.execv(sys.executable, [sys.executable, "-m", "pflcli", *self.words])

    @staticmethod
    def _outputs(folder: Path) -> dict[str, dict[str, str]]:
        """Return the content of all artifacts at the output or below, and of other outputs; without unfinished ones."""
        artifacts = {
            str(path.parent.relative_to(folder)): trying.content(path.parent)
            for path in folder.rglob("manifest.json")
            if not trying.leftovers(folder) or not any(".partial" in part for part in path.parts)
        }
        # A file takes its place in one step, a page after the files of its folder.
        others = [path for path in folder.rglob("*") if path.is_file() and not artifacts]
        return artifacts | {
            str(path.relative_to(folder)): {"": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in others
            if not any(map(trying.is_leftover, (path, *path.parents)))
        }

    def once(self, number: int) -> int:
        """Kill the command up to three times, let it end, and return how often it was killed."""
        folder, kills = self.root / str(number), 0
        shutil.copytree(self.old, folder) if self.old else folder.mkdir()
        faults = dict(self.tally.faults)
        for _ in range(self.draw.randint(1, 3)):
            if not self._kill(folder):
                break
            kills += 1
        ended = self._run(folder)
        if ended.hung:
            self.tally.fault("hangs", f"typed again, {ended}")
        elif ended.talks_nonsense():
            self.tally.fault("tracebacks", f"typed again, {ended}")
        elif ended.code:
            self.tally.fault("broken", f"typed again, {ended}")
        elif self._outputs(folder) != self.expected:
            self.tally.fault("silent", f"{folder} differs from {self.whole}")
        elif trying.leftovers(folder) or sorted(path.name for path in folder.iterdir()) != self.names:
            self.tally.fault("broken", f"{trying.leftovers(folder)} is left in {folder}")
        if faults == self.tally.faults:
            shutil.rmtree(folder)
        return kills

    def _kill(self, folder: Path) -> bool:
        """Kill the command once; False if it had ended before."""
        number = self.draw.choice(SIGNALS)
        if not self.cold and self.draw.random() < 0.5:
            place = self.draw.randint(1, self.count)
            command = Command(self.words, folder, self.operations.reporter(place, number))
            where = f"{number.name} at file operation {place}"
            ended = command.end(trying.PATIENCE + 4 * self.seconds[0])
        else:
            command = self._command(folder)
            moment = self.draw.uniform(0, statistics.median(self.seconds))
            command.started()
            if command.runs(moment):
                command.send(number)
            where = f"{number.name} after {moment:.3f} s"
            ended = command.end(trying.PATIENCE)
        if ended.code == 0:
            self.seconds.append(ended.seconds)
        where = f"{where}, {folder}, {ended}"
        # Before main has set its handler, SIGTERM ends Python as it ends any program.
        codes = (-signal.SIGKILL,) if number == signal.SIGKILL else (130, -number)
        if ended.hung:
            self.tally.fault("hangs", where)
        elif self.cold and ended.code in (1, 130, -signal.SIGINT) and ", in run\n" not in ended.err:
            self.early += ended.err != ""  # Python itself was interrupted, before it came to our first function
        elif ended.talks_nonsense():
            self.tally.fault("tracebacks", where)
        elif ended.code not in (0, *codes):
            self.tally.fault("broken", where)
        if not trying.wait_for_end(command.pid):
            self.tally.fault("broken", f"a worker process outlives {where}")
        for name, content in self._outputs(folder).items():
            if content not in (self.expected.get(name), self.standing.get(name)):
                self.tally.fault("broken", f"{name} is neither old nor new: {where}")
        if self.old and not (folder / "out").exists():  # killed between the two renames
            aside = trying.content(folder / "out.partial.old")
            if aside not in (self.expected["out"], self.standing["out"]):
                self.tally.fault("broken", f"neither old nor new is there: {where}")
        return ended.code != 0


def main() -> None:
    args = trying.arguments(__doc__, 300, "kills for each command", only=list(COMMANDS))
    trying.warm()
    with trying.place() as root:
        (root / "in").mkdir()
        trying.inputs(root / "in")
        trying.heading()
        tallies = []
        for name in args.only:
            tries, number = Tries(name, root, random.Random(f"{args.seed} {name}")), 0
            while tries.tally.tried < args.count:
                tries.tally.tried += tries.once(number)
                number += 1
            tries.tally.notes.append(f"{number} runs, {statistics.median(tries.seconds):.1f} s each")
            if tries.early:
                tries.tally.notes.append(f"{tries.early} by SIGINT while Python itself began, with its traceback")
            print(tries.tally.row(), flush=True)
            tallies.append(tries.tally)
    trying.report(tallies)


if __name__ == "__main__":
    main()
