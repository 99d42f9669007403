"""Seconds a FedAvg round: pfl against a plain PyTorch loop, side by side in one run, and against the machine's ceiling.

    python benchmarks/rounds.py [--models cnn,mobilenet-v2,mlp] [--rounds 5] [--threads 2]

100 clients of 250 samples, 10 a round, batch 32, one local epoch, random images. The plain loop is written as most
repositories write it: deepcopy of the global model, a DataLoader, an optimizer, a mean of state_dicts. It runs with
``--threads`` intra-op threads. Rounds alternate, so that drift of the machine hits both; the median is printed.

The ceiling is the arithmetic of a round (forward and backward: 3 x 2 x multiply-adds of convolutions and linear layers)
at the best rate of a large matrix product, measured in the same run on all threads.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from pflcli.artifacts import blocks
from pflcli.artifacts.partition import Partition
from pflcli.fl.run import Run
from pflcli.methods import fedavg
from pflcli.models import create
from pflcli.steps import training
from pflcli.steps.making import Manner

CLIENTS, SAMPLES = 100, 250
SHAPES = {"cnn": ((28, 28), 62), "mlp": ((28, 28), 62), "mobilenet-v2": ((32, 32, 3), 10)}
SETTINGS = {"participation": 0.1, "batch_size": 32, "epochs": 1, "lr": 0.01}


def world(model: str) -> Partition:
    """Random images of the model's usual size."""
    shape, classes = SHAPES[model]
    draw = np.random.default_rng(0)
    n = CLIENTS * SAMPLES
    sizes = np.tile([SAMPLES, 0, 0], CLIENTS)
    return Partition(
        x=draw.integers(0, 256, (n, *shape), dtype=np.uint8),
        y=draw.integers(0, classes, n),
        sample=np.arange(n),
        offsets=blocks.offsets(sizes),
        names=[str(client) for client in range(CLIENTS)],
        classes=classes,
    )


def ours(run: Run) -> Callable[[int], object]:
    """A round of pfl's FedAvg."""
    state = fedavg.setup(run)
    return lambda t: fedavg.train_round(run, state, t)


def plain(run: Run, model: str) -> Callable[[int], object]:
    """A round as most repositories write it."""
    data = run.federation
    net = create(model, data.in_shape, data.classes, 0)
    sets = [
        TensorDataset(data.inputs(data.block(int(c), "train")), data.y[data.block(int(c), "train")])
        for c in run.clients
    ]

    def once(t: int) -> None:
        total: dict[str, torch.Tensor] = {}
        cohort = run.cohort(t)
        for client in cohort:
            local = copy.deepcopy(net).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=0.01)
            for x, y in DataLoader(sets[client], batch_size=32, shuffle=True):
                optimizer.zero_grad()
                functional.cross_entropy(local(x), y).backward()
                optimizer.step()
            for name, value in local.state_dict().items():
                total[name] = total.get(name, 0) + value * (1 / len(cohort))
        net.load_state_dict(total)

    return once


def multiply_adds(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of the convolutions and linear layers for one sample, forward."""
    count = 0

    def see(module: nn.Module, _: object, out: torch.Tensor) -> None:
        nonlocal count
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        count += weight.numel() * (out.shape[2] * out.shape[3] if out.ndim == 4 else 1)

    hooks = [m.register_forward_hook(see) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    net.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return count


def gemm_rate(threads: int) -> float:
    """Best FLOP/s of a large float32 matrix product."""
    torch.set_num_threads(threads)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    times = []
    for _ in range(10):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    return 2 * 1024**3 / min(times)


def timed(once: Callable[[int], object], t: int) -> float:
    """Seconds of one round."""
    began = time.perf_counter()
    once(t)
    return time.perf_counter() - began


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cnn,mobilenet-v2,mlp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    names = args.models.split(",")
    if len(names) > 1:
        # Thread pools that one model leaves behind slow down the next: a process for each.
        for name in names:
            command = [sys.executable, __file__, "--models", name, "--rounds", args.rounds, "--threads", args.threads]
            subprocess.run([str(word) for word in command], check=True)
        return
    rate = gemm_rate(args.threads)
    print(f"{args.threads} threads, matrix product {rate / 1e9:.0f} GFLOP/s")
    print(f"{'model':14}{'pfl s':>10}{'plain s':>10}{'plain/pfl':>11}{'ceiling s':>11}{'of ceiling':>12}")
    for model in names:
        plan = training.settings({}, {**SETTINGS, "model": model})
        run = training.prepare(world(model), fedavg, None, plan, 0, Manner(threads=args.threads))
        functions = {"pfl": ours(run), "plain": plain(run, model)}
        seconds: dict[str, list[float]] = {name: [] for name in functions}
        for t in range(args.rounds + 1):
            for name, once in functions.items():
                torch.set_num_threads(args.threads)
                seconds[name].append(timed(once, t))
        # The first round of each pays for memory and is not counted.
        median = {name: statistics.median(values[1:]) for name, values in seconds.items()}
        net = create(model, run.federation.in_shape, run.federation.classes, 0)
        ceiling = 3 * 2 * multiply_adds(net, run.federation.in_shape) * 10 * SAMPLES / rate
        print(
            f"{model:14}{median['pfl']:10.3f}{median['plain']:10.3f}{median['plain'] / median['pfl']:10.2f}x"
            f"{ceiling:11.3f}{ceiling / median['pfl']:11.0%}"
        )


if __name__ == "__main__":
    main()
