"""What `pfl compare -n` estimates beside what the comparison then takes: seconds and disk.

    python benchmarks/estimates.py [--worlds writers-mlp,hospitals,made] [--methods all] [--rounds 20] [--into DIR]

For each federation and model the comparison is estimated, and run as a process of its own on one thread. A row is
printed for each step: estimated and measured processor seconds and bytes on disk, and their ratio; then for the whole
comparison, with its peak of resident memory. The machine may do other work meanwhile: processor seconds then grow
by some tens of per cent, too, as cores share caches and clocks. The load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

WORLDS = {
    "writers-logistic": (["writers"], "logistic"),
    "writers-mlp": (["writers"], "mlp"),
    "writers-cnn": (["writers"], "cnn"),
    "hospitals": (["heart-disease"], "mlp"),
    "made": (["data"], "mlp"),
}
"""By name, what is partitioned and the model. `made` is drawn here: 2,000 clients of 40 samples of 32 features."""
CLIENTS, SAMPLES, FEATURES, CLASSES = 2000, 40, 32, 10


def main() -> None:
    """Estimate and measure each federation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--methods", default="all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--into", type=Path, help="folder for the artifacts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.into or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        for name in args.worlds.split(","):
            compare(name, *WORLDS[name], args)


def compare(name: str, source: list[str], model: str, args: argparse.Namespace) -> None:
    """Print the estimate of a comparison beside its measurement."""
    if source == ["data"]:
        draw_samples()
    pfl("partition", *source, "-o", f"{name}-p")
    words = [f"{name}-p", "-o", f"{name}-c", "--model", model, "--rounds", str(args.rounds), "--threads", "1"]
    dry, began = pfl("compare", *words, "--methods", args.methods, "-n", "--json"), os.getloadavg()[0]
    plan = json.loads(dry.stdout)["summary"]
    known = [row["step"] for row in plan["plan"] if "processor_seconds" in row]
    chosen = [step for step in known if step not in ("backbone", "embeddings", "datastore")]
    run = pfl("compare", *words, "--methods", ",".join(chosen))
    print(f"\n{name}: {model}, {args.rounds} rounds, load {began:.1f} to {os.getloadavg()[0]:.1f}")
    print(
        f"{'step':14} {'estimated s':>12} {'measured s':>11} {'ratio':>6} "
        f"{'estimated MB':>13} {'measured MB':>12} {'ratio':>6}"
    )
    close = 0
    for row in plan["plan"]:
        path = Path(row["path"])
        if row["step"] not in known or not (path / "manifest.json").exists():
            print(f"{row['step']:14} no estimate or not run")
            continue
        seconds = json.loads((path / "manifest.json").read_text())["made"]["processor_seconds"]
        ratio = row["processor_seconds"] / max(seconds, 1e-3)
        close += 0.75 <= ratio <= 1.25 or abs(row["processor_seconds"] - seconds) < 0.1
        print(line(row["step"], row["processor_seconds"], seconds, row["disk_bytes"], size(path)), flush=True)
    needs = plan["needs"]
    print(line("all", needs["processor_seconds"], run.processor, needs["disk_bytes"], size(Path(f"{name}-c"))))
    print(f"seconds within 25 % or 0.1 s: {close} of {len(known)} steps; the dry run took {dry.processor:.1f} s")


def line(name: str, estimated: float, measured: float, disk: float, bytes_written: float) -> str:
    """Return a row of the table."""
    return (
        f"{name:14} {estimated:12.2f} {measured:11.2f} {estimated / max(measured, 1e-3):6.2f} "
        f"{disk / 1e6:13.2f} {bytes_written / 1e6:12.2f} {disk / max(bytes_written, 1):6.2f}"
    )


def size(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Ended:
    """A command that has ended: what it printed, and its processor seconds."""

    def __init__(self, stdout: str, usage: Any) -> None:
        self.stdout = stdout
        self.processor = usage.ru_utime + usage.ru_stime


def pfl(*words: str) -> Ended:
    """Run a command of pfl in a process of its own."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen([sys.executable, "-m", "pflcli", *words], stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if child.returncode:
            err.seek(0)
            sys.stderr.write(err.read().decode()[-2000:])
        return Ended(out.read().decode(), usage)


def draw_samples() -> None:
    """Draw a federation whose clients have three classes each."""
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(CLIENTS), SAMPLES)
    y = (owner + draw.integers(0, 3, len(owner))) % CLASSES
    x = (draw.normal(size=(CLASSES, FEATURES))[y] + draw.normal(size=(len(y), FEATURES))).astype(np.float32)
    np.savez("data.npz", x=x, y=y, owner=owner)
    pfl("import", "data.npz", "-o", "data")


if __name__ == "__main__":
    main()
