"""Ten methods of PFLlib, its own code, beside the same methods of pfl: the same clients, network and settings.

    python benchmarks/pfllib.py --pfllib CHECKOUT --python VENV/bin/python --root FOLDER [--model mlp] [--rounds 3]

``CHECKOUT`` is a copy of https://github.com/TsingZ0/PFLlib, ``VENV`` an environment with what it imports: torch,
torchvision, h5py, scikit-learn, ujson, matplotlib and pillow. ``FOLDER`` has ``fashion_mnist.npz``. PFLlib's generator
deals Fashion-MNIST to its 20 clients (Dirichlet 0.1, three quarters of each for training); both sides take that split,
the network and initial weights of pfl, all clients in each round, one epoch in batches of 10, learning rate 0.005.

Every run is a process from its start to its end: the command line of PFLlib, which tests all clients on test and
training samples in every round, and ``pfl personalize``, which tests once, at the end. So two ratios of processor
seconds are printed: to PFLlib as it is by default, and to what is left of it without any evaluation but one. Accuracy
is that of test samples after the last round, over all clients; the two sides differ in the order of minibatches, and
PFLlib leaves out the samples that fill no minibatch.

Both sides have the same settings of glibc's allocator. With ``--threads 2`` PFLlib has one thread or two, whichever
makes its FedAvg faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.core import models

BENCHMARKS = Path(__file__).parent
NETWORKS = {"cnn-valid": "CNN", "mlp": "DNN", "logistic": "MLR"}
"""pfl's models by PFLlib's name of the network that they take the place of."""
LR, BATCH = 0.005, 10
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
"""What ``pflcli/core/engine/process_settings.py`` sets for pfl."""


@dataclass(frozen=True)
class Pair:
    """A method on both sides: PFLlib's algorithm with its options, and pfl's method with its own.

    ``splits`` says that it treats the last layer in another way than the others, so that there must be others.
    """

    algorithm: str
    flags: str
    method: str
    options: tuple[str, ...] = ()
    splits: bool = False


PAIRS = (
    Pair("FedAvg", "", "fedavg"),
    Pair("Local", "", "local"),
    Pair("FedProx", "-mu 0.01", "fedprox", ("mu=0.01",)),
    Pair("Ditto", "-mu 0.1 -pls 1", "ditto", ("lam=0.1",)),
    Pair("FedPer", "", "fedper", splits=True),
    Pair("FedRep", "-pls 1", "fedrep", ("head_epochs=1", "final_epochs=0"), splits=True),
    Pair("FedBABU", "-fte 1", "fedbabu", ("epochs=1",), splits=True),
    Pair("LG-FedAvg", "", "lg-fedavg", splits=True),
    # PFLlib answers with the global model. Its theta goes on from one minibatch to the next and so comes all the way to
    # the minimum; pfl's begins at w, as in the paper, and its default rate makes up for the shorter way.
    Pair("pFedMe", "-bt 1 -lam 15 -K 5 -lrp 0.01", "pfedme", ("lam=15", "inner_lr=0.01", "epochs=0")),
    Pair("FedDBE", "-klw 1 -mo 1", "feddbe", ("kappa=1",), splits=True),
)


@dataclass
class Spent:
    """What a process took from its start to its end: seconds and processor seconds."""

    seconds: float
    processor: float

    def less(self, seconds: float, processor: float) -> Spent:
        """Return what is left without some seconds and processor seconds."""
        return Spent(self.seconds - seconds, self.processor - processor)


def main() -> None:
    """Prepare the samples, and let both sides run each method in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfllib", type=Path, required=True, help="a checkout of PFLlib")
    parser.add_argument("--python", required=True, help="the interpreter of an environment with what PFLlib imports")
    parser.add_argument("--root", type=Path, required=True, help="the folder of fashion_mnist.npz")
    parser.add_argument("--model", choices=NETWORKS, default="cnn-valid")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to train, at least 2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="names of pfl's methods, separated by commas")
    parser.add_argument("--scratch", type=Path, help="keep samples and runs in this folder")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds is 2 or more: PFLlib averages over rounds but the first")
    only = set(filter(None, args.only.split(",")))
    pairs = [pair for pair in PAIRS if not only or pair.method in only]
    if args.model == "logistic":
        pairs = [pair for pair in pairs if not pair.splits]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.scratch or Path(temporary)
        if not (folder / "partition").exists():
            prepare(args, folder)
        check(folder)
        report(pairs, args, folder.resolve())


def prepare(args: argparse.Namespace, folder: Path) -> None:
    """Let PFLlib deal the samples in a copy of its programs, and give its split to pfl."""
    copy = folder / "pfllib"
    shutil.copytree(args.pfllib / "system", copy / "system")
    shutil.copytree(args.pfllib / "dataset" / "utils", copy / "dataset" / "utils")
    shutil.copy(args.pfllib / "dataset" / "generate_FashionMNIST.py", copy / "dataset")
    write_idx(args.root / "fashion_mnist.npz", copy / "dataset" / "FashionMNIST" / "rawdata" / "FashionMNIST" / "raw")
    dealt = folder.resolve() / "dealt.npz"
    run_pfllib(args, copy / "dataset", {"work": "generate", "out": str(dealt)}, 1)
    columns = ["--client", "client", "--label", "label", "--features", "x", "--split-column", "split"]
    run_pfl("import", dealt, *columns, "-o", folder / "data")
    run_pfl("partition", folder / "data", "--fractions", "1,0,0", "--seed", 0, "-o", folder / "partition")


def check(folder: Path) -> None:
    """Exit unless both sides have as many training and test samples per client."""
    data = partitions.read(open_artifact(folder / "partition", "partition"))
    with np.load(folder / "dealt.npz") as arrays:
        training, client = arrays["split"] == "train", arrays["client"]
        expected = zip(np.bincount(client[training]), np.bincount(client[~training]), strict=True)
    sizes = np.diff(data.offsets).reshape(-1, 3)
    if sorted(expected) != sorted(zip(sizes[:, 0], sizes[:, 2], strict=True)):  # names of clients are sorted as words
        sys.exit("the two sides do not train and test on the same numbers of samples")


def write_idx(source: Path, folder: Path) -> None:
    """Write Fashion-MNIST as the four IDX files that torchvision looks for."""
    folder.mkdir(parents=True)
    with np.load(source) as arrays:
        for split, stem in (("train", "train"), ("test", "t10k")):
            for array, kind in ((f"x_{split}", "images-idx3"), (f"y_{split}", "labels-idx1")):
                values = arrays[array].astype(np.uint8)
                header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
                (folder / f"{stem}-{kind}-ubyte").write_bytes(header + values.tobytes())


def report(pairs: list[Pair], args: argparse.Namespace, folder: Path) -> None:
    """Print a row per method and one of sums."""
    weights = folder / f"{args.model}.npz"
    net = models.create(args.model, (1, 28, 28), 10, seed=0)
    np.savez(weights, **{name: value.numpy() for name, value in net.state_dict().items()})
    threads = better_threads(args, folder, weights) if args.threads > 1 else 1
    load = os.getloadavg()[0]
    print(f"{args.model}, {args.rounds} rounds; threads: pfl {args.threads}, PFLlib {threads}; load {load:.1f}")
    print(f"{'':10} {'PFLlib':^32}   {'pfl':^23}   {'times':^24}")
    own = f"{'seconds':>8} {'CPU s':>7} {'acc %':>6}"
    print(f"{'method':10} {'seconds':>8} {'CPU s':>7} {'tests s':>8} {'acc %':>6}   {own}   seconds    CPU untested")
    sums = np.zeros(5)
    for pair in pairs:
        spent, untested, facts = peer(pair, args, folder, weights, threads)
        own, accuracy = measured(pair, args, folder)
        figures = np.array([spent.seconds, spent.processor, untested.processor, own.seconds, own.processor])
        sums += figures
        tests = spent.processor - untested.processor
        print(row(pair.method, figures, tests, facts["accuracies"][-1], accuracy), flush=True)
    print(row("all", sums, sums[1] - sums[2], None, None))


def row(name: str, figures: np.ndarray, tests: float, peer_accuracy: float | None, accuracy: float | None) -> str:
    """Return a line of the table; the last ratio is of processor seconds without evaluations but one."""
    seconds, processor, untested, own_seconds, own_processor = figures
    accuracies = [f"{100 * value:6.2f}" if value is not None else " " * 6 for value in (peer_accuracy, accuracy)]
    peer = f"{seconds:8.1f} {processor:7.1f} {tests:8.1f} {accuracies[0]}"
    own = f"{own_seconds:8.1f} {own_processor:7.1f} {accuracies[1]}"
    ratios = f"{seconds / own_seconds:7.2f} {processor / own_processor:6.2f} {untested / own_processor:8.2f}"
    return f"{name:10} {peer}   {own}   {ratios}"


def better_threads(args: argparse.Namespace, folder: Path, weights: Path) -> int:
    """Return the number of threads with which PFLlib's FedAvg takes fewer seconds."""
    return min((1, args.threads), key=lambda count: peer(PAIRS[0], args, folder, weights, count)[0].seconds)


def peer(
    pair: Pair, args: argparse.Namespace, folder: Path, weights: Path, threads: int
) -> tuple[Spent, Spent, dict[str, Any]]:
    """Run PFLlib: what it took, what is left without its evaluations but one, and what its clocks say."""
    arguments = (
        f"-data FashionMNIST -ncl 10 -m {NETWORKS[args.model]} -nc 20 -jr 1 -lbs {BATCH} -lr {LR} -ls 1 -dev cpu"
    )
    # PFLlib trains one round more than it is told, and tests before each.
    arguments += f" -gr {args.rounds - 1} -eg 1 -algo {pair.algorithm} {pair.flags}"
    out = folder / "clocks.json"
    task = {
        "work": "train",
        "arguments": arguments.split(),
        "threads": threads,
        "weights": str(weights),
        "out": str(out),
    }
    process = run_pfllib(args, folder / "pfllib" / "system", task, threads)
    facts = json.loads(out.read_text())
    spent = process.less(*facts["uncounted"])
    others = np.array(facts["evaluations"][1:]).reshape(-1, 2).sum(0)
    return spent, spent.less(*others), facts


def measured(pair: Pair, args: argparse.Namespace, folder: Path) -> tuple[Spent, float]:
    """Run pfl: what it took, and the accuracy over clients weighted by their samples."""
    out = folder / "runs" / args.model / pair.method
    settings = ["--model", args.model, "--rounds", args.rounds, "--participation", 1, "--batch-size", BATCH, "--lr", LR]
    options = [word for option in pair.options for word in ("--set", option)]
    spent = run_pfl(
        "personalize",
        pair.method,
        folder / "partition",
        *settings,
        *options,
        "--threads",
        args.threads,
        "-f",
        "-o",
        out,
    )
    run_pfl("evaluate", out, "-f", "-o", folder / "scores")
    (scores,) = evaluation.read(open_artifact(folder / "scores"))["methods"]
    return spent, scores["metrics"]["accuracy"]["value"]


def run_pfllib(args: argparse.Namespace, folder: Path, task: dict[str, Any], threads: int) -> Spent:
    """Run PFLlib's program in its folder."""
    environment = {"PYTHONPATH": f"{BENCHMARKS}{os.pathsep}{BENCHMARKS.parent}", "OMP_NUM_THREADS": str(threads)}
    return spent_by([args.python, "-m", "subjects.pfllib", json.dumps(task)], folder, environment)


def run_pfl(*words: Any) -> Spent:
    """Run a command of pfl."""
    command = [sys.executable, "-m", "pflcli", *map(str, words), "-q"]
    return spent_by(command, None, {"PYTHONPATH": str(BENCHMARKS.parent)})


def spent_by(command: list[str], folder: Path | None, environment: dict[str, str]) -> Spent:
    """Run a process to its end; print what it wrote and exit if it fails."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | ALLOCATOR | environment, stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            log.seek(0)
            sys.exit(log.read()[-2000:])
    return Spent(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    main()
