"""End a commit, and the writing of a checkpoint, at every system call, and type the command again.

    python tests/faults/commits.py [COUNT] [--only NAME ...] [--signals NAME ...]

strace (Linux) sends the signal when the N-th system call begins, for every N up to the last; COUNT takes only every
COUNT-th. Whatever the moment: what stands at OUT is the old artifact or the new, whole; the same line then ends with
the bytes of a run that was left alone; and nothing is deleted that pfl did not make.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import trying
from pflcli.artifacts.writer import ArtifactWriter
from trying import Command, Ended, Tally

FEW = ("--model", "mlp", "--rounds", 3, "--participation", 0.5, "--batch-size", 8, "--threads", 1)
TRAIN = ("train-global", "IN/p", *FEW)
CASES: dict[str, tuple[str, tuple[object, ...], str]] = {
    "commit to a new folder": ("commit", ("build-datastore", "IN/e"), ""),
    "commit to an empty folder": ("commit", ("build-datastore", "IN/e"), "empty"),
    "commit after a checkpoint": ("commit", TRAIN, ""),
    "commit --force over another artifact": ("commit", (*TRAIN, "--force"), "other"),
    "commit --force over a link to one": ("commit", (*TRAIN, "--force"), "link"),
    "checkpoint": ("write_checkpoint", TRAIN, ""),
}
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")


class Traced:
    """One command, of which strace follows one method of ``ArtifactWriter`` from its beginning to its end."""

    def __init__(self, name: str, root: Path) -> None:
        self.tally = Tally(name)
        self.method, words, self.stands = CASES[name]
        self.words = [str(word).replace("IN/", f"{root}/in/") for word in words] + ["-o", "out"]
        self.root = root / name.replace(" ", "_")
        self.whole = self._folder("whole")
        self._run(self.whole, "")
        self.expected = trying.content(self.whole / "out")
        self.old: dict[str, str] = {}

    def _folder(self, name: str) -> Path:
        """Make a folder in which stands what stands at OUT before, beside a file that is not pfl's."""
        folder = self.root / name
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("not pfl's")
        out = folder / "out"
        if self.stands == "empty":
            out.mkdir()
        elif self.stands:
            trying.pfl(["import", self.root.parent / "in" / "data.npz", "-o", "out"], folder)
            self.old = trying.content(out)
        if self.stands == "link":
            (self.root / "there").mkdir(exist_ok=True)
            out.rename(self.root / "there" / name)
            out.symlink_to(self.root / "there" / name)
        return folder

    def _run(self, folder: Path, inject: str) -> tuple[Ended, int]:
        """Run the command, traced; return how it ended and the number of system calls that were traced."""
        log = folder.with_suffix(".strace")
        at, go = os.pipe(), os.pipe()
        command = Command(self.words, folder, self._stop_at(at[1], go[0]))
        os.close(at[1])
        os.close(go[0])
        calls = 0
        if os.read(at[0], 1):
            words = ["strace", "-f", "-qq", "-o", log, "-p", str(command.pid), *(["-e", inject] if inject else [])]
            tracer = subprocess.Popen([*map(str, words)], stderr=subprocess.PIPE)
            while b"TracerPid:\t0" in Path(f"/proc/{command.pid}/status").read_bytes() and tracer.poll() is None:
                pass
            os.write(go[1], b"x")
            ended = command.end(trying.PATIENCE)
            tracer.communicate()
            calls = len(log.read_text().splitlines())
            log.unlink()
        else:
            ended = command.end(trying.PATIENCE)
        for handle in (at[0], go[1]):
            os.close(handle)
        return ended, calls

    def _stop_at(self, at: int, go: int) -> Callable[[], None]:
        """Return what lets a command wait for strace when it first comes to the method, and end it there after that."""

        def first() -> None:
            method, name = getattr(ArtifactWriter, self.method), self.method

            def traced(work: ArtifactWriter, *args: object) -> object:
                setattr(ArtifactWriter, name, method)
                os.write(at, b"x")
                os.read(go, 1)
                return method(work, *args)

            setattr(ArtifactWriter, name, traced)

        return first

    def points(self) -> int:
        """Return the number of system calls of a run that is left alone."""
        folder = self._folder("counted")
        ended, calls = self._run(folder, "")
        if ended.code:
            raise SystemExit(f"{self.tally.name}: {ended}")
        shutil.rmtree(folder)
        return calls

    def once(self, number: signal.Signals, point: int) -> None:
        folder = self._folder(f"{number.name}-{point}")
        ended, _ = self._run(folder, f"inject=all:signal={number.name}:when={point}")
        where = f"{number.name} at system call {point}, {ended}"
        self.tally.tried += 1
        existing = trying.content(folder / "out") if (folder / "out" / "manifest.json").exists() else {}
        if ended.hung:
            self.tally.fault("hangs", where)
        elif ended.talks_nonsense():
            self.tally.fault("tracebacks", where)
        elif existing not in (self.old, self.expected):
            self.tally.fault("broken", f"out is neither old nor new, {where}")
        again = trying.pfl(self.words, folder)
        where = f"typed again, {again}; {where}"
        if again.code:
            self.tally.fault("tracebacks" if again.talks_nonsense() else "broken", where)
        elif trying.content(folder / "out") != self.expected:
            self.tally.fault("silent", where)
        elif sorted(path.name for path in folder.iterdir()) != ["notes.txt", "out"] or trying.leftovers(folder):
            self.tally.fault("broken", f"{[*folder.iterdir()]} {trying.leftovers(folder)}, {where}")
        elif self.stands == "link" and trying.content(self.root / "there" / folder.name) != self.old:
            self.tally.fault("broken", f"what the link led to is not what it was, {where}")
        shutil.rmtree(folder)


def main() -> None:
    args = trying.arguments(__doc__, 1, "take every COUNT-th system call", only=list(CASES), signals=SIGNALS)
    if not shutil.which("strace"):
        sys.exit("strace is not installed, and nothing was tried: apt-get install strace")
    trying.warm()
    with trying.place() as root:
        (root / "in").mkdir()
        trying.inputs(root / "in")
        trying.heading()
        tallies = []
        for name in args.only:
            traced = Traced(name, root)
            points = traced.points()
            for number in (signal.Signals[name] for name in args.signals):
                for point in range(1, points + 1, args.count):
                    traced.once(number, point)
            traced.tally.notes.append(f"{points} system calls, {', '.join(args.signals)}")
            print(traced.tally.row(), flush=True)
            tallies.append(traced.tally)
    trying.report(tallies)


if __name__ == "__main__":
    main()
