"""What a round takes for each task: processor seconds of FedAvg on the same samples and the same network, in turn.

    python benchmarks/tasks.py [--model mlp] [--rounds 40] [--turns 5] [--tasks quantity,count]

The samples are those of writers, whose labels are the digits: ten classes, a quantity, or a count. Networks differ in
their last layer, which has an output for each class, or one. Each turn runs every task on one thread, after three
rounds that load the code. A line gives the median seconds, and the median over turns of the ratio to classes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import replace

import torch

from pflcli import Federation, simulate
from pflcli.core import tasks


def main() -> None:
    """Measure each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    known = "quantity,quantity:absolute,quantity:huber,quantile:0.1:0.5:0.9,count"
    parser.add_argument("--tasks", default=known, help="names of tasks, separated by commas; quantiles by colons")
    args = parser.parse_args()
    torch.set_num_threads(1)
    writers = Federation.from_dataset("writers")
    federations = {"classes": writers}
    for word in args.tasks.split(","):
        kind, _, option = word.partition(":")
        task = tasks.parse(f"{kind}:{option.replace(':', ',')}" if option else kind, "")
        federations[word] = replace(writers, y=writers.y.double(), task=task).fitted()
    seconds: dict[str, list[float]] = {name: [] for name in federations}
    for turn in range(-1, args.turns):
        for name, federation in federations.items():
            spent = measure(federation, args.model, 3 if turn < 0 else args.rounds)
            seconds[name] += [spent] if turn >= 0 else []
    print(f"{args.model}, {args.rounds} rounds, one thread, load {os.getloadavg()[0]:.1f}: processor seconds of FedAvg")
    print(f"{'task':22} {'seconds':>8} {'ratio':>6}")
    for name, values in seconds.items():
        ratio = statistics.median(own / base for own, base in zip(values, seconds["classes"], strict=True))
        print(f"{name:22} {statistics.median(values):8.2f} {ratio:6.2f}", flush=True)


def measure(federation: Federation, model: str, rounds: int) -> float:
    """Return the processor seconds of a run."""
    began = time.process_time()
    simulate("fedavg", federation, model=model, rounds=rounds, participation=0.4, batch_size=10, lr=0.05, quiet=True)
    return time.process_time() - began


if __name__ == "__main__":
    main()
