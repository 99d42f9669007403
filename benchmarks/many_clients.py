"""Seconds, peak memory and open descriptors of every command and method with many clients.

    python benchmarks/many_clients.py [--clients 10000] [--participation 0.1] [--only pens,fedham] [--into DIR]

Clients hold ten samples of 20 features and 10 classes each, and learn a small model. Every command is a process of its
own that may open 256 descriptors and no more; the chain goes from ``pfl import`` to ``pfl compare``. Methods that split
a network learn an ``mlp``. Prints a row for each: seconds, seconds of processor time, seconds for which its threads
waited for a processor that others had, peak resident memory, most descriptors open at once, and how it ended. With
``--into`` the artifacts stay, and those that are there are used again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLES, FEATURES, CLASSES = 10, 20, 10
USAGE = 2
"""Exit code of a method that does not take the model."""


@dataclass(frozen=True)
class Cost:
    """What a command took: ``waited`` seconds for a processor, ``mb`` of peak resident memory, ``descriptors`` open at
    once, exit ``code``.
    """

    seconds: float
    processor_seconds: float
    waited: float
    mb: float
    descriptors: int
    code: int


def main() -> None:
    """Measure the chain, then every method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--only", default="", help="commands and methods to measure, by their names")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a command is ended")
    parser.add_argument("--descriptors", type=int, default=256, help="descriptors that a command may open")
    parser.add_argument("--into", type=Path, help="folder for the artifacts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.into or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        write(Path("data.npz"), args.clients)
        only = set(filter(None, args.only.split(",")))
        print(f"{args.clients} clients, {args.model}, {args.rounds} rounds, participation {args.participation}")
        print(f"{'command':24} {'seconds':>8} {'of CPU':>8} {'waited':>8} {'MB':>8} {'descriptors':>12}")
        for name, command in commands(args):
            needed = name in ("import", "partition", "train-global", "extract", "build-datastore")
            if only and name not in only and not (needed and not Path(command[command.index("-o") + 1]).exists()):
                continue
            cost = measure([sys.executable, "-m", "pflcli", *command], args.limit, args.descriptors)
            if cost.code == USAGE and command[0] == "personalize":
                again = ["personalize", command[1], "p", *command[3:], *training(args, "mlp")]
                cost = measure([sys.executable, "-m", "pflcli", *again], args.limit, args.descriptors)
            ended = "" if cost.code == 0 else f"  exit {cost.code}" if cost.code > 0 else "  not done"
            print(
                f"{name:24} {cost.seconds:8.1f} {cost.processor_seconds:8.1f} {cost.waited:8.1f} "
                f"{cost.mb:8.0f} {cost.descriptors:12}{ended}",
                flush=True,
            )


def commands(args: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Return every command by the name that it is printed under."""
    settings = training(args, args.model)
    listed = subprocess.run(
        [sys.executable, "-m", "pflcli", "list", "methods"], capture_output=True, text=True, check=True
    )
    methods = [line.split("\t")[0] for line in listed.stdout.splitlines()[1:]]
    chain = [
        ("import", ["import", "data.npz", "-o", "data"]),
        ("partition", ["partition", "data", "-o", "p"]),
        ("train-global", ["train-global", "p", "-o", "b", *settings]),
        ("extract", ["extract", "b", "-o", "e"]),
        ("build-datastore", ["build-datastore", "e", "-o", "d"]),
        ("show --plot", ["show", "p", "--plot", "p.png"]),
        ("sweep", ["sweep", "e", "-o", "sweep"]),
    ]
    scored = ["m/fedavg", "m/local", "m/knn-per"]
    after = [
        ("evaluate", ["evaluate", *scored, "-o", "evaluation"]),
        ("show --verify", ["show", "m/knn-per", "--lineage", "--verify"]),
        ("show --plot panm", ["show", "m/panm", "--plot", "panm.png"]),
        ("compare", ["compare", "p", "-o", "c", "--methods", "fedavg,knn-per,fedavg-plus", *settings]),
    ]
    personalizations = [(name, ["personalize", name, "d", "-o", f"m/{name}"]) for name in methods if name != "oracle"]
    clustered = ["--scheme", "clusters", "--set", "kind=labels", "--clients", str(args.clients)]
    known = [
        ("clusters", ["partition", "data", "-o", "c4", *clustered]),
        ("oracle", ["personalize", "oracle", "c4", "-o", "m/oracle", *settings]),
    ]
    return [*chain, *personalizations, *known, *after]


def training(args: argparse.Namespace, model: str) -> list[str]:
    """Return the options of training."""
    return ["--model", model, "--rounds", str(args.rounds), "--participation", str(args.participation)]


def write(path: Path, clients: int) -> None:
    """Write samples of ``clients`` clients, each of which has seen a part of the classes."""
    if path.exists():
        return
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(clients), SAMPLES)
    y = (owner + draw.integers(0, 3, len(owner))) % CLASSES
    centres = draw.normal(size=(CLASSES, FEATURES))
    x = (centres[y] + draw.normal(size=(len(y), FEATURES))).astype(np.float32)
    np.savez(path, x=x, y=y, owner=owner)


def measure(command: list[str], limit: float, descriptors: int) -> Cost:
    """Run a command that may open so many ``descriptors``; one that takes longer than ``limit`` seconds is ended."""
    began, most = time.monotonic(), 0
    waits: dict[str, float] = {}
    child = subprocess.Popen(
        ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command], stdout=subprocess.DEVNULL
    )
    while True:
        ended, status, usage = os.wait4(child.pid, os.WNOHANG)
        if ended:
            break
        with suppress(OSError):  # it has just ended
            most = max(most, sum(1 for _ in Path(f"/proc/{child.pid}/fd").iterdir()))
            for thread in Path(f"/proc/{child.pid}/task").iterdir():
                waits[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        if time.monotonic() - began > limit:
            child.send_signal(signal.SIGKILL)
        time.sleep(0.02)
    child.returncode = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    seconds, waited = time.monotonic() - began, sum(waits.values())
    return Cost(seconds, usage.ru_utime + usage.ru_stime, waited, peak, most, child.returncode)


if __name__ == "__main__":
    main()
