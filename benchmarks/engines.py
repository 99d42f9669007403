"""Back the rule of ``strategy.fastest_mode``: the modes loop and stacked, side by side, over sizes of model.

    python benchmarks/engines.py [--threads 2]

One local epoch, batch 32, of two cohorts: 10 clients of 250 samples and 100 clients of 30 samples, 28x28 images. Prints
the median milliseconds of each mode, taken in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it

import torch
from torch import nn

from pflcli.artifacts import client_blocks
from pflcli.core import parameters
from pflcli.core.engine import strategy
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.models import Net

HIDDEN = (0, 8, 16, 32, 64, 200)
COHORTS = ((10, 250), (100, 30))


def network(hidden: int) -> Net:
    """Logistic regression, or one hidden layer."""
    if hidden == 0:
        return Net(nn.Flatten(), nn.Linear(784, 10))
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU()), nn.Linear(hidden, 10))


def main() -> None:
    """Measure every size of model on both cohorts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    draw = np.random.default_rng(0)
    plan = LocalSGD(epochs=1, batch_size=32, lr=np.asarray([0.01]))
    print(
        f"{'parameters':>10} {'clients':>8} {'samples':>8} {'loop ms':>9} {'stacked ms':>11} {'loop/stacked':>13}  rule"
    )
    for hidden in HIDDEN:
        net = network(hidden)
        for clients, samples in COHORTS:
            n = clients * samples
            x, y = draw.integers(0, 256, (n, 28, 28), dtype=np.uint8), draw.integers(0, 10, n)
            data = Federation.from_blocks(x, y, client_blocks.offsets(np.tile([samples, 0, 0], clients)), 10)
            engines = {mode: Engine(net, data, seed=0, threads=args.threads, mode=mode) for mode in ("loop", "stacked")}
            times: dict[str, list[float]] = {mode: [] for mode in engines}
            for repeat in range(args.repeats + 1):
                for mode, engine in engines.items():
                    torch.set_num_threads(args.threads)
                    began = time.perf_counter()
                    list(engine.local_sgd(data.clients, parameters.copy_params(net), plan, ("sgd", repeat)))
                    times[mode].append((time.perf_counter() - began) * 1e3)
            loop, stacked = (statistics.median(values[1:]) for values in times.values())
            count = sum(p.numel() for p in net.parameters())
            print(
                f"{count:10,} {clients:8} {samples:8} {loop:9.1f} {stacked:11.1f} {loop / stacked:12.2f}x  "
                f"{strategy.fastest_mode(net, 'cpu')}"
            )


if __name__ == "__main__":
    main()
