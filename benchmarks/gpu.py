"""What a GPU does: the stacked engine, PFLlib's setting, agreement with the CPU, and TF32.

    python benchmarks/gpu.py --root FOLDER [--parts stacked,pfllib,agree,tf32] [--rounds 2000] [--methods fedavg,ditto]
    python benchmarks/gpu.py --device cpu --parts stacked,agree,tf32

``stacked``: a FedAvg round of 200 clients x MobileNet-v2, 96 random images each, batch 32, by pfl and by a plain loop
(deepcopy, DataLoader, optimizer, mean of state dicts) on the same card, in turn; the loop has its samples in ordinary
memory or on the card, whichever is faster. Goal: 10 times.
``pfllib``: Fashion-MNIST of ``FOLDER``/fashion_mnist.npz dealt to PFLlib's 20 clients, its network, batch 10, learning
rate 0.005, all clients in each round, for the methods that PFLlib has, too. Goal: 2,000 rounds of all in an hour; with
fewer ``--rounds`` the time is extrapolated from the rounds' own seconds, and the output says so.
``agree``: three rounds of every method on 60 writers, ``mlp`` and ``cnn``, on the CPU and on the GPU; the largest
difference of a probability and the difference of accuracy, against tolerances that are printed.
``tf32``: a round of FedAvg as pfl computes it, in float32 even where PyTorch is told to allow TF32, and with TF32
forced upon it: seconds, and how far the models part, relative to how far they moved.

The program exits with 1 if the CPU and the GPU do not agree, TF32 is used unasked, or memory is too small. Goals that
are missed are printed.
``--device cpu`` takes tiny sizes, to try the program itself; there, ``agree`` compares two modes of the engine, and
``pfllib`` takes 600 random images.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_methods
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds.partition import Partition
from pflcli.core import models
from pflcli.core.engine import engine
from pflcli.core.execution import Execution
from pflcli.core.federation.run import Run
from pflcli.core.tasks import Labels
from pflcli.methods import fedavg
from pflcli.workflow.training import run_settings
from pflcli.workflow.training.run_spec import RunSpec

PARTS = ("stacked", "pfllib", "agree", "tf32")
GOAL = 10
LR = 0.01


@dataclass(frozen=True)
class Sizes:
    """A federation of random images: ``samples`` per client, in batches of ``batch``; ``repeats`` turns."""

    model: str
    shape: tuple[int, ...]
    clients: int
    samples: int
    batch: int
    repeats: int


FULL = Sizes("mobilenet-v2", (32, 32, 3), 200, 96, 32, 5)
TINY = Sizes("cnn-valid", (16, 16, 3), 3, 4, 2, 1)


def main(words: list[str] | None = None) -> None:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--root", type=Path, help="the folder of fashion_mnist.npz, for pfllib")
    parser.add_argument("--rounds", type=int, default=gpu_methods.PUBLISHED_ROUNDS, help="rounds of pfllib")
    parser.add_argument("--methods", default="", help="only these methods in pfllib and agree, separated by commas")
    args = parser.parse_args(words)
    parts = args.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part {unknown[0]}: choose from {','.join(PARTS)}")
    if args.rounds < 1:
        parser.error("--rounds is 1 or more")
    if "pfllib" in parts and args.root is None and args.device == "cuda":
        parser.error("pfllib needs --root FOLDER with fashion_mnist.npz; or leave it out with --parts")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device: run this on a machine with a GPU, or try the program itself with --device cpu")
    sizes = FULL if args.device == "cuda" else TINY
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU, tiny sizes: no figures of a GPU"
    print(f"{name}; torch {torch.__version__}", flush=True)
    only = set(filter(None, args.methods.split(",")))
    chosen = {
        "stacked": lambda: stacked(sizes, args.device),
        "pfllib": lambda: gpu_methods.published(args.root, args.rounds, args.device, only),
        "agree": lambda: gpu_methods.agree(args.device, only),
        "tf32": lambda: tf32(sizes, args.device),
    }
    outcomes = []
    for part in parts:
        print(f"\n{part}", flush=True)
        gpu_methods.release(args.device)
        try:
            outcomes.append(chosen[part]())
        except torch.OutOfMemoryError as error:
            print(f"  the memory of the card is too small: {error}", flush=True)
            outcomes.append(False)
    sys.exit(0 if all(outcomes) else 1)


def seconds(work: Callable[[], object], device: str) -> float:
    """Return how long ``work`` takes, with all that it leaves to the device."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def federation(sizes: Sizes) -> Partition:
    """Return clients of random images, all of them for training."""
    draw, n = np.random.default_rng(0), sizes.clients * sizes.samples
    return Partition(
        x=draw.integers(0, 256, (n, *sizes.shape), dtype=np.uint8),
        y=draw.integers(0, 10, n),
        sample=np.arange(n),
        offsets=client_blocks.offsets(np.tile([sizes.samples, 0, 0], sizes.clients)),
        names=[str(client) for client in range(sizes.clients)],
        labels=Labels(10),
    )


def prepared(sizes: Sizes, data: Partition, device: str, mode: str = "stacked") -> Run:
    """Return a run of FedAvg, ready for its rounds."""
    plan = {"model": sizes.model, "participation": 1.0, "batch_size": sizes.batch, "epochs": 1, "lr": LR}
    execution = Execution(device=device, engine=mode, threads=1)
    settings = run_settings.resolve_settings({}, plan)
    return RunSpec(name="fedavg", method=fedavg, cfg=fedavg.Config(), settings=settings, seed=0).build(data, execution)


def stacked(sizes: Sizes, device: str) -> bool:
    """Compare the stacked engine with a plain loop."""
    data = federation(sizes)
    run = prepared(sizes, data, device)
    state = fedavg.setup(run)
    loops = {f"plain loop, samples {place}": plain(sizes, data, device, place) for place in {"cpu", device}}
    subjects = {"pfl": lambda: fedavg.train_round(run, state, 0), **loops}
    for work in subjects.values():
        work()  # kernels are chosen and memory is taken
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(sizes.repeats):
        for name, work in subjects.items():
            times[name].append(seconds(work, device))
    run.engine.close()
    best = min(loops, key=lambda name: statistics.median(times[name]))
    ratio = statistics.median(loop / own for loop, own in zip(times[best], times["pfl"], strict=True))
    print(
        f"{sizes.clients} clients x {sizes.model}, {sizes.samples} samples each, batch {sizes.batch}; seconds per round"
    )
    for name, values in times.items():
        print(f"  {name:28} {statistics.median(values):9.3f}")
    if device == "cuda":
        print(f"  most memory of the card {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    print(f"  {ratio:.1f} times the plain loop ({gpu_methods.verdict(ratio >= GOAL, device)}: {GOAL})")
    return True


def plain(sizes: Sizes, data: Partition, device: str, place: str) -> Callable[[], object]:
    """Return a round as most repositories write it, with the samples in memory or on the card."""
    images = torch.from_numpy(np.asarray(data.x)).permute(0, 3, 1, 2).float().div(255).contiguous()
    x, y = images.to(place), torch.from_numpy(data.y).to(place)
    sets = [
        TensorDataset(*(part[first : first + sizes.samples] for part in (x, y)))
        for first in range(0, len(y), sizes.samples)
    ]
    net = models.create(sizes.model, tuple(images.shape[1:]), 10, 0).to(device)

    def train_round() -> dict[str, torch.Tensor]:
        total: dict[str, torch.Tensor] = {}
        for samples in sets:
            local = copy.deepcopy(net).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=LR)
            for inputs, labels in DataLoader(samples, batch_size=sizes.batch, shuffle=True):
                optimizer.zero_grad()
                functional.cross_entropy(local(inputs.to(device)), labels.to(device)).backward()
                optimizer.step()
            for name, value in local.state_dict().items():
                total[name] = total.get(name, 0) + value / len(sets)
        return total

    return train_round


@contextmanager
def with_tf32(threads: int) -> Iterator[None]:
    """Compute as the engine does, but with TF32."""
    with INTRA_OP(threads):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
        yield


INTRA_OP = engine.intra_op


def tf32(sizes: Sizes, device: str) -> bool:
    """Compare rounds of pfl with TF32 forbidden, allowed by PyTorch's own settings, and forced."""
    data = federation(sizes)
    run = prepared(sizes, data, device, mode="auto")
    state = fedavg.setup(run)
    ends: dict[str, dict[str, torch.Tensor]] = {}
    spent: dict[str, float] = {}
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        for name, allowed, forced in (("float32", False, False), ("allowed", True, False), ("forced", True, True)):
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
            engine.intra_op = with_tf32 if forced else INTRA_OP
            times = []
            for _ in range(sizes.repeats + 1):
                states: list[Any] = []
                times.append(seconds(lambda states=states: states.append(fedavg.train_round(run, state, 0)), device))
                ends[name] = states[0]["global"]
            spent[name] = statistics.median(times[1:])
    finally:
        engine.intra_op = INTRA_OP
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    run.engine.close()
    start = state["global"]
    apart = {name: distance(end, ends["float32"]) / distance(start, ends["float32"]) for name, end in ends.items()}
    for name, value in apart.items():
        print(f"  {name:8} {spent[name]:.3f} s a round; {value:.1e} of the way that the model moved from float32")
    # cuDNN may sum in another order from call to call, but never as coarsely as with ten bits of mantissa.
    honoured = apart["allowed"] <= max(1e-4, apart["forced"] / 10)
    print(f"  TF32 {'is not used unless forced' if honoured else 'IS USED UNASKED'}")
    return honoured


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Return the Euclidean distance of two models."""
    squares = ((first[name].double() - second[name].double()).square().sum() for name in first)
    return float(torch.stack(list(squares)).sum().sqrt())


if __name__ == "__main__":
    main()
