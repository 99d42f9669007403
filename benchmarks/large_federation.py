"""Seconds, memory and disk of every step of a large federation, from `pfl import` to `pfl report`.

    python benchmarks/large_federation.py [--samples 1000000] [--clients 100000] [--model mlp] [--into DIR]

Samples are 28x28 images: digits of the writers that come with pfl, shifted and paler by a seeded draw;
each client gets digits of one writer. They are written in pieces to one NPZ file and imported as a user would. Every
command is a process of its own. Prints a row for each: seconds, processor seconds, peak resident memory of its
process tree, the part of it that is no file's page (``own``, which cannot be dropped when memory is short), and bytes
of its artifact. With ``--into`` artifacts stay, and those that exist are used again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

SHIFT = 2
"""Most pixels by which an image is shifted."""
PIECE = 50_000
"""Images that are made at a time."""


@dataclass(frozen=True)
class Cost:
    """What a command took; ``resident`` and ``own`` are peaks over its process tree, in bytes."""

    seconds: float
    processor_seconds: float
    resident: int
    own: int
    code: int


def main() -> None:
    """Measure every step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=100, help="clients that train per round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="steps to measure, by their names, separated by commas")
    parser.add_argument("--into", type=Path, help="folder for the artifacts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.into or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        # In a process of its own, as a child's peak memory begins with that of its parent.
        maker = multiprocessing.get_context("spawn").Process(
            target=write, args=("data.npz", args.samples, args.clients)
        )
        maker.start()
        maker.join()
        print(
            f"{args.samples} samples of {args.clients} clients, {args.model}, {args.rounds} rounds of {args.cohort} "
            f"clients, {args.threads} threads; data.npz {Path('data.npz').stat().st_size / 1e6:.0f} MB"
        )
        print(f"{'step':16} {'seconds':>8} {'of CPU':>8} {'peak MB':>8} {'own MB':>8} {'disk MB':>8}")
        chosen = set(filter(None, args.only.split(",")))
        rows = [_row(name, command) for name, command in steps(args) if not chosen or name in chosen]
        if len(rows) > 1:
            wall, processor = sum(cost.seconds for cost in rows), sum(cost.processor_seconds for cost in rows)
            resident, own = max(cost.resident for cost in rows), max(cost.own for cost in rows)
            _print("sum, or largest", Cost(wall, processor, resident, own, 0), Path())


def steps(args: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Return the commands by the name that they are printed under."""
    threads = ["--threads", str(args.threads)]
    share = f"{args.cohort / args.clients:.6g}"
    training = ["--model", args.model, "--rounds", str(args.rounds), "--participation", share]
    return [
        ("import", ["import", "data.npz", "-o", "data"]),
        ("partition", ["partition", "data", "-o", "p"]),
        ("train-global", ["train-global", "p", "-o", "b", *training, *threads]),
        ("extract", ["extract", "b", "-o", "e", *threads]),
        ("build-datastore", ["build-datastore", "e", "-o", "d"]),
        ("knn-per", ["personalize", "knn-per", "d", "-o", "m/knn-per", *threads]),
        ("fedavg-plus", ["personalize", "fedavg-plus", "b", "-o", "m/fedavg-plus", *threads]),
        ("evaluate", ["evaluate", "m/knn-per", "m/fedavg-plus", "-o", "evaluation"]),
        ("report", ["report", "evaluation", "-o", "report.html"]),
    ]


def _row(name: str, command: list[str]) -> Cost:
    """Run one step and print what it took."""
    cost = measure([sys.executable, "-m", "pflcli", *command])
    _print(name, cost, Path(command[command.index("-o") + 1]))
    return cost


def _print(name: str, cost: Cost, out: Path) -> None:
    """Print the row of a step that has made ``out``."""
    ended = "" if cost.code == 0 else f"  exit {cost.code}"
    print(
        f"{name:16} {cost.seconds:8.1f} {cost.processor_seconds:8.1f} {cost.resident / 1e6:8.0f} {cost.own / 1e6:8.0f} "
        f"{disk(out) / 1e6:8.0f}{ended}",
        flush=True,
    )


def write(name: str, samples: int, clients: int) -> None:
    """Write images ``x``, their digits ``y`` and ``owner`` as an NPZ file, a piece at a time."""
    path = Path(name)
    if path.exists():
        return
    from pflcli.data.datasets import writers

    known = writers.load(None)
    assert known.owner is not None
    _, writer = np.unique(known.owner, return_inverse=True)
    by_writer = [np.flatnonzero(writer == number) for number in range(writer.max() + 1)]
    draw = np.random.default_rng(0)
    owner = np.sort(np.concatenate([np.arange(clients), draw.integers(clients, size=samples - clients)]))
    sizes = np.asarray([len(rows) for rows in by_writer])[owner % len(by_writer)]
    place = (draw.random(samples) * sizes).astype(np.int64)
    starts = np.cumsum([0, *(len(rows) for rows in by_writer[:-1])])
    source = np.concatenate(by_writer)[starts[owner % len(by_writer)] + place]
    with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as file:
        for array, values in (("y", known.y[source]), ("owner", owner)):
            with file.open(f"{array}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values)
        with file.open("x.npy", "w", force_zip64=True) as member:
            _write_images(member, known.x, source, draw)
    path.with_suffix(".tmp").rename(path)


def _write_images(
    member: IO[bytes], digits: NDArray[np.uint8], source: NDArray[np.int64], draw: np.random.Generator
) -> None:
    """Write the images of ``source`` (n,) as an NPY file, each shifted by a few pixels and scaled in its contrast."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(source), *digits.shape[1:])}
    np.lib.format.write_array_header_1_0(member, header)
    side = digits.shape[1]
    padded = np.pad(digits, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(1, 2))
    for first in range(0, len(source), PIECE):
        rows = source[first : first + PIECE]
        down, right = draw.integers(0, 2 * SHIFT + 1, size=(2, len(rows)))
        contrast = draw.integers(160, 257, size=len(rows))[:, None, None]
        member.write(((windows[rows, down, right].astype(np.uint16) * contrast) >> 8).astype(np.uint8).tobytes())


def measure(command: list[str]) -> Cost:
    """Run a command to its end, and sample the memory of its process tree while it runs."""
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks, ended = [0, 0], threading.Event()
    sampler = threading.Thread(target=_sample, args=(child.pid, peaks, ended))
    sampler.start()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    ended.set()
    sampler.join()
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Cost(seconds, usage.ru_utime + usage.ru_stime, max(peak, peaks[0]), peaks[1], child.returncode)


def _sample(root: int, peaks: list[int], ended: threading.Event) -> None:
    """Keep the largest sums of resident and of own bytes over the processes below ``root``; Linux alone has them."""
    while not ended.wait(0.05):
        sums = np.zeros(2, np.int64)
        for process in _tree(root):
            with suppress(OSError):  # it has just ended
                sums += _memory(process)
        peaks[:] = np.maximum(peaks, sums).tolist()


def _tree(root: int) -> list[int]:
    """Return a process and all processes below it."""
    processes, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        processes.append(process)
        with suppress(OSError):
            waiting += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
    return processes


def _memory(process: int) -> tuple[int, int]:
    """Return resident bytes of a process, and how many of them are neither a file's nor shared."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    resident, own = (1024 * int(fields.get(name, "0 kB").split()[0]) for name in ("VmRSS", "RssAnon"))
    return resident, own


def disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    main()
