"""Seconds of a whole `pfl compare`, by this checkout and by another, in turn.

    git worktree add /tmp/before COMMIT
    python benchmarks/comparison.py --against /tmp/before [--rounds 12] [--turns 1] [--only apfl,ditto]
    python benchmarks/comparison.py --against /tmp/before --dataset fashion-mnist --root FOLDER [--model cnn]

The settings are those of ``examples/all-methods.sh``, with one seed, as many rounds as ``--rounds`` says, and the
methods that both checkouts know, but ``oracle``, which these data do not suit. Each side makes a partition of its
own, not counted, then the comparison with its table and picture. Both run on the Python that runs this. Processor
seconds are those of the process and its children; where others use the machine they say more than the clock. Where a
default has changed, the line of the artifact says so: ``--set`` makes both sides equal, ``--set-here`` where only
this side has it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
PFL = [sys.executable, "-m", "pflcli"]
WRITERS = ["--participation", "0.4", "--lr", "0.05", "--eval-every", "5"]
OTHERS = {
    "mlp": ["--participation", "1", "--lr", "0.05", "--eval-every", "5"],
    "cnn": ["--participation", "1", "--lr", "0.005", "--eval-every", "10"],
}
"""Training settings by dataset and model."""


def main() -> None:
    """Compare in turn, and print the seconds of both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout")
    parser.add_argument("--dataset", default="writers")
    parser.add_argument("--root", help="folder with the dataset's files")
    parser.add_argument("--model", choices=OTHERS, default="mlp")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="names of methods, separated by commas")
    parser.add_argument("--set", action="append", default=[], help="METHOD.KEY=VALUE, for both sides")
    parser.add_argument(
        "--set-here", action="append", default=[], help="METHOD.KEY=VALUE, an option of this side alone"
    )
    args = parser.parse_args()
    sides = {"here": PROJECT, "there": args.against.resolve()}
    known = [set(names(side)) for side in sides.values()]
    methods = sorted(set(filter(None, args.only.split(","))) or set.intersection(*known) - {"oracle"})
    print(f"{args.dataset}, {args.model}, {args.rounds} rounds, {args.threads} threads, {len(methods)} methods")
    totals: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as scratch:
        for side, checkout in sides.items():
            pfl(checkout, partition(args), Path(scratch, side))
        for turn in range(args.turns):
            for side, checkout in sides.items():
                own = args.set_here if side == "here" else []
                words = compare(args, methods, Path(scratch, side), [*args.set, *own])
                if "references" in (checkout / "pflcli/options/compare.py").read_text():  # older ones add no rows
                    words.append("--no-references")
                totals[side].append(pfl(checkout, words, Path(scratch, f"{side}-{turn}")))
        last = args.turns - 1
        steps = {side: requests(Path(scratch, f"{side}-{last}")) for side in sides}
    report(totals, steps)


def names(checkout: Path) -> list[str]:
    """Return the names of the methods that a checkout knows."""
    module = "pflcli.core" if (checkout / "pflcli" / "core").is_dir() else "pflcli"
    code = f"from {module} import registry; print(*registry.names('methods'))"
    words = subprocess.run([sys.executable, "-c", code], env=environment(checkout), capture_output=True, check=True)
    return words.stdout.decode().split()


def environment(checkout: Path) -> dict[str, str]:
    """Return the environment in which Python takes ``pflcli`` from a checkout."""
    return {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}


def partition(args: argparse.Namespace) -> list[str]:
    """Return the words of the command that makes the partition."""
    words = ["partition", args.dataset, *(["--root", args.root] if args.root else [])]
    if args.dataset == "writers":
        return [*words, "--scheme", "natural"]
    words += ["--scheme", "dirichlet", "--set", "alpha=0.1", "--clients", "20", "--min-samples", "10"]
    return words if args.model == "cnn" else [*words, "--part", "1/10"]


def compare(args: argparse.Namespace, methods: list[str], source: Path, options: list[str]) -> list[str]:
    """Return the words of the command that compares."""
    settings = WRITERS if args.dataset == "writers" else OTHERS[args.model]
    counts = ["--rounds", str(args.rounds), "--threads", str(args.threads)]
    listed = ["--methods", ",".join(methods), "--model", args.model, "--batch-size", "10"]
    return ["compare", str(source), *listed, *settings, *counts, *(f"--set={option}" for option in options)]


def pfl(checkout: Path, words: list[str], out: Path) -> tuple[float, float]:
    """Run a command of a checkout; return the seconds and the processor seconds that it took."""
    began, before = time.perf_counter(), os.times()
    subprocess.run([*PFL, *words, "-o", out, "-q"], env=environment(checkout), check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, spent


def requests(out: Path) -> dict[str, tuple[float, dict[str, Any]]]:
    """Return the seconds and the request of each artifact of a comparison but its table."""
    manifests = {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("seed-*/*/manifest.json"))}
    return {name: (manifest["made"]["seconds"], manifest["request"]) for name, manifest in manifests.items()}


def report(
    totals: dict[str, list[tuple[float, float]]], steps: dict[str, dict[str, tuple[float, dict[str, Any]]]]
) -> None:
    """Print a line for each artifact, and one for the whole."""
    print(f"{'artifact, last turn':24} {'seconds here':>12} {'there':>8} {'there/here':>10}")
    for name, (other_seconds, other_request) in sorted(steps["there"].items(), key=lambda item: -item[1][0]):
        seconds, request = steps["here"].get(name, (float("nan"), other_request))
        figures = f"{seconds:12.2f} {other_seconds:8.2f} {other_seconds / seconds:10.2f}"
        print(f"{name:24} {figures}{difference(request, other_request)}")
    for index, unit in enumerate(("seconds", "processor seconds")):
        own, others = ([value[index] for value in totals[side]] for side in ("here", "there"))
        ratios = sorted(other / value for value, other in zip(own, others, strict=True))
        medians = f"{statistics.median(own):12.2f} {statistics.median(others):8.2f} {statistics.median(ratios):10.2f}"
        print(f"{'whole, ' + unit:24} {medians}  ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def difference(request: dict[str, Any], other_request: dict[str, Any]) -> str:
    """Return which values of a method's options differ, of those that both sides have."""
    own, other = request.get("options", {}), other_request.get("options", {})
    values = [f"{key}={own[key]} there {other[key]}" for key in own.keys() & other.keys() if own[key] != other[key]]
    return f"  {', '.join(sorted(values))}" if values else ""


if __name__ == "__main__":
    main()
