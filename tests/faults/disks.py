"""Fill the disk under every command, at twelve sizes, then give it room and type the command again.

    python tests/faults/disks.py [COUNT] [--only NAME ...]

A small tmpfs holds the output alone; COUNT sizes, from 4 KB to more than the output needs, and as many with a number
of files in place of bytes. A command that finds no room says so in words and ends with exit code 3 (`compare`, of which
one method may have found room, with 3 or 5); an old artifact that it was to replace stands whole; with room the same
line ends with the bytes of one that had it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import trying
from trying import Tally

FEW = ("--model", "mlp", "--rounds", 3, "--participation", 0.5, "--batch-size", 8, "--threads", 1)
COMMANDS: dict[str, tuple[object, ...]] = {
    "import": ("import", "IN/data.npz"),
    "partition": ("partition", "IN/data", "--scheme", "iid", "--clients", 6),
    "train-global": ("train-global", "IN/p", *FEW),
    "train-global --force": ("train-global", "IN/p", *FEW, "--force"),
    "extract": ("extract", "IN/b"),
    "build-datastore": ("build-datastore", "IN/e"),
    "update-datastore": ("update-datastore", "IN/d", "IN/e"),
    "personalize knn-per": ("personalize", "knn-per", "IN/d"),
    "personalize ditto": ("personalize", "ditto", "IN/p", *FEW),
    "evaluate": ("evaluate", "IN/knn", "IN/fedavg"),
    "sweep": ("sweep", "IN/e"),
    "stack": ("stack", "IN/knn", "IN/fedavg"),
    "tune": ("tune", "local", "IN/p", *FEW, "--search", "training.epochs=1,2"),
    "compare": ("compare", "IN/p", "--methods", "fedavg,local,stack", *FEW),
}
ROOMY = "size=64m,nr_inodes=10000"


def mount(folder: Path, options: str) -> None:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


class Disk:
    """One command on disks that are too small for it."""

    def __init__(self, name: str, root: Path) -> None:
        self.tally, self.root = Tally(name), root
        self.words = [str(word).replace("IN/", f"{root}/in/") for word in COMMANDS[name]] + ["-o", "out"]
        reference = root / "whole" / name.replace(" ", "_")
        reference.mkdir(parents=True)
        ended = trying.pfl(self.words, reference)
        if ended.code:
            raise SystemExit(f"{name}: {ended}")
        self.expected = trying.content(reference / "out")
        self.bytes = sum(path.stat().st_size for path in reference.rglob("*"))
        self.refused = 0

    def once(self, options: str) -> None:
        folder, old = self.root / "disk", {}
        mount(folder, ROOMY)
        try:
            if "--force" in self.words:
                trying.pfl(["import", self.root / "in" / "data.npz", "-o", "out"], folder)
                old = trying.content(folder / "out")
            self._fill(folder, options, old)
        finally:
            subprocess.run(["umount", str(folder)], check=True)
            folder.rmdir()

    def _fill(self, folder: Path, options: str, old: dict[str, str]) -> None:
        used = os.statvfs(folder)
        key, room = options.split("=")
        in_use = (used.f_blocks - used.f_bfree) * used.f_bsize if key == "size" else used.f_files - used.f_ffree
        remount(folder, f"{key}={int(room) + in_use}")
        self.tally.tried += 1
        ended = trying.pfl(self.words, folder)
        where = f"{options}, {ended}"
        # `tune` and `compare` make a folder of artifacts, of which some may be there although there was no room.
        complete = not ended.code or (folder / "out" / "manifest.json").exists()
        existing = trying.content(folder / "out") if complete else {}
        compared = "compare" in self.words
        self.refused += bool(ended.code)
        if ended.hung or ended.seconds > 4 * trying.PATIENCE:  # of which no time is spent on waiting for room
            self.tally.fault("hangs", where)
        if ended.talks_nonsense():
            self.tally.fault("tracebacks", where)
        elif ended.code not in (0, 3, *([5] if compared else [])) or (ended.code and "pfl: " not in ended.err):
            self.tally.fault("broken", where)
        if existing != (old if ended.code else self.expected):
            self.tally.fault("broken", f"out is not what it should be: {where}")
        remount(folder, ROOMY)
        again = trying.pfl(self.words, folder)
        if again.code:
            self.tally.fault("tracebacks" if again.talks_nonsense() else "broken", f"with room, {again}; {where}")
        elif trying.content(folder / "out") != self.expected:
            self.tally.fault("silent", f"with room, other bytes; {where}")
        elif trying.leftovers(folder):
            self.tally.fault("broken", f"{trying.leftovers(folder)} is left; {where}")


def main() -> None:
    args = trying.arguments(__doc__, 12, "sizes", only=list(COMMANDS))
    with trying.place() as root:
        try:
            mount(root / "disk", ROOMY)
        except (OSError, subprocess.CalledProcessError):
            sys.exit("no tmpfs can be mounted (only root may), and nothing was tried")
        subprocess.run(["umount", str(root / "disk")], check=True)
        (root / "disk").rmdir()
        trying.warm()
        (root / "in").mkdir()
        trying.inputs(root / "in")
        trying.heading()
        tallies = []
        for name in args.only:
            disk = Disk(name, root)
            for size in np.geomspace(4096, 2 * disk.bytes, args.count):
                disk.once(f"size={int(size) // 4096 * 4096}")
            for files in range(args.count):
                disk.once(f"nr_inodes={files}")
            disk.tally.notes.append(f"no room in {disk.refused}")
            print(disk.tally.row(), flush=True)
            tallies.append(disk.tally)
    trying.report(tallies)


if __name__ == "__main__":
    main()
