"""Processor seconds of a round of every method over those of FedAvg, beside the same ratio of arithmetic.

    python benchmarks/methods.py [--model mlp] [--dataset writers] [--rounds 7] [--only apfl,ditto]

The engine counts the samples that pass through models: a pass forward and backward counts three, a pass forward one.
``with models`` is the ratio of arithmetic that also counts the multiplications by which methods mix whole models, take
their inner products, or estimate, factor and solve systems of equations, as a pass forward of as many. They are what
these methods compute, as passes are, so the quotient of seconds by ``with models`` says how much a method spends beside
its own arithmetic: 1 is as much as FedAvg does. Each method plays three rounds, which load compiled loops (FedHAM's
first two are FedAvg's), and then those that are measured, on one thread. Each of its rounds is played next to one of
FedAvg, with the same clients, so that both run when the machine is equally busy; ratios are medians over rounds. The
last round of either evaluates. Peers and methods with searches of their own do work that is no pass.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import pflcli
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.core import config, methods, registry
from pflcli.core.engine import model_algebra
from pflcli.core.engine.process_settings import keep_freed_memory
from pflcli.core.errors import PflError
from pflcli.core.execution import Execution
from pflcli.core.settings import Settings
from pflcli.core.simulation import loop
from pflcli.methods import pfedgp
from pflcli.methods.parts import gaussians
from pflcli.workflow.training.run_spec import RunSpec

FORWARD, BOTH = 1, 3
WARM_UP = 3
"""rounds before those that are measured"""


def main() -> None:
    """Measure every method that has rounds on a partition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--dataset", default="writers")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that are measured")
    parser.add_argument("--participation", type=float, default=0.5)
    parser.add_argument("--only", default="", help="names of methods, separated by commas")
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    count = WARM_UP + args.rounds
    settings = Settings(model=args.model, rounds=count, participation=args.participation, eval_every=WARM_UP)
    keep_freed_memory()  # before the partition's threads, which would leave arenas of their own to those that train
    compile_products()
    gc.freeze()  # as in the process ``pfl``, what was imported is not searched for garbage
    with tempfile.TemporaryDirectory() as scratch:
        pflcli.partition(args.dataset, Path(scratch, "p"), seed=0)
        data = partitions.read(open_artifact(Path(scratch, "p"), "partition"))
        print(f"{args.dataset}, {args.model}, {args.rounds} rounds, one thread; relative to FedAvg in turn")
        print(f"{'method':16} {'ms a round':>10} {'seconds':>8} {'arithmetic':>10} {'with models':>11} {'quotient':>8}")
        for name in registry.names("methods"):
            method = methods.load(name)
            if not method.has_rounds or method.NEEDS or (only and name not in only):
                continue
            try:
                base, own = measure_in_turn("fedavg", name, data, settings)
            except PflError as error:
                print(f"{name:16} {error}")
                continue
            seconds = statistics.median(own.seconds[i] / base.seconds[i] for i in range(args.rounds))
            arithmetic, with_models = own.passes / base.passes, own.products / base.products
            milliseconds, quotient = 1e3 * statistics.median(own.seconds), seconds / with_models
            print(
                f"{name:16} {milliseconds:10.1f} {seconds:8.2f} {arithmetic:10.2f} {with_models:11.2f} {quotient:8.2f}",
                flush=True,
            )


class Multiplications:
    """Counts the multiplications of whole models, and of systems of equations, from its creation on."""

    def __init__(self) -> None:
        self.count = 0
        for name in ("mix", "inner_products"):
            setattr(model_algebra, name, self._counted(getattr(model_algebra, name)))
        model_algebra.mix_sparse = self._counted_few(model_algebra.mix_sparse)
        torch.linalg.solve = self._counted_solve(torch.linalg.solve)
        pfedgp.losses_and_gradients = self._counted_trees(pfedgp.losses_and_gradients)
        gaussians.principal_axes = self._counted_axes(gaussians.principal_axes)
        gaussians.mixed_statistics = self._counted_statistics(gaussians.mixed_statistics)
        gaussians.cross_validate = self._counted_folds(gaussians.cross_validate)

    def _counted(self, product: Any) -> Any:
        def count(first: Any, second: Any, *rest: Any) -> Any:
            self.count += len(first) * second.numel()
            return product(first, second, *rest)

        return count

    def _counted_few(self, sums: Any) -> Any:
        def count(weights: Any, models: Any, out: Any) -> None:
            self.count += weights.values().numel() * models.shape[1]
            sums(weights, models, out)

        return count

    def _counted_solve(self, solve: Any) -> Any:
        def count(matrix: Any, right: Any) -> Any:
            size = matrix.shape[-1]
            self.count += matrix.numel() * size // 3 + right.numel() * size
            return solve(matrix, right)

        return count

    def _counted_trees(self, losses: Any) -> Any:
        def count(prior: Any, trees: Any, z: Any, y: Any, sizes: Any, rngs: Any) -> Any:
            for tree, labels, size in zip(trees.numpy(), y.numpy(), sizes, strict=True):
                of_classes = np.bincount(labels[:size], minlength=tree.shape[1])
                below = tree != 0
                support, queries = below @ ((of_classes + 1) // 2), below @ (of_classes // 2)
                # A Cholesky factor takes n^3 / 6 multiplications, solving by it n^2: per sweep once, and to predict.
                solved = (prior.sweeps + 1) * support**3 / 6 + (prior.sweeps + 1 + queries) * support**2
                self.count += prior.chains * int(solved[queries > 0].sum())
            return losses(prior, trees, z, y, sizes, rngs)

        return count

    def _counted_axes(self, axes: Any) -> Any:
        def count(common: Any) -> Any:
            classes, size = common["means"].shape
            # To tridiagonal form 2/3 n^3 multiplications, its vectors at most 4/3 n^3, back to the axes n^3.
            self.count += 3 * size**3 + classes * size**2
            return axes(common)

        return count

    def _counted_statistics(self, statistics: Any) -> Any:
        def count(samples: Any, betas: Any, common: Any, ridge: float) -> Any:
            classes, size = common["means"].shape
            self.count += sum(len(y) for _, y in samples) * (size**2 + 2 * classes * size)
            return statistics(samples, betas, common, ridge)

        return count

    def _counted_folds(self, validate: Any) -> Any:
        def count(grid: Any, ridge: float, samples: Any, folds: Any, principal: Any, priors: Any) -> Any:
            classes, size = principal[1]["means"].shape
            n = np.asarray([np.sum(fold == half) for fold in folds for half in (0, 1)])
            # Per head of the grid: A D^-1 A', its Cholesky factor, what it solves for each class, and the logits.
            head = n**2 * size + n**3 // 6 + classes * (2 * n * size + n**2) + classes * n * size
            self.count += int((n * (size**2 + 2 * classes * size) + len(grid) * head).sum())
            return validate(grid, ridge, samples, folds, principal, priors)

        return count


MULTIPLICATIONS = Multiplications()


def compile_products() -> None:
    """Compile the products of models, or read them from a cache: a process does so once, whatever its rounds."""
    models = torch.ones(70, 20000)
    model_algebra.inner_products(models, models)
    model_algebra.mix(torch.ones(1, 70), models, torch.empty(1, 20000))


def of_a_pass(run: Any) -> float:
    """Return the multiplications of a pass forward of one sample."""
    x = run.federation.inputs(torch.zeros(1, dtype=torch.int64))
    counter, net = FlopCounterMode(display=False), run.engine._worker_net.net
    with counter, torch.no_grad():
        net.eval()(x)
    return counter.get_total_flops() / 2


class Measured:
    """A run of a method whose rounds are played and measured one by one."""

    def __init__(self, name: str, data: Any, settings: Settings) -> None:
        self.name, self.method = name, methods.load(name)
        cfg = config.build(self.method.Config, {}, name)
        spec = RunSpec(name=name, method=self.method, cfg=cfg, settings=settings, seed=0)
        self.run = spec.build(data, Execution(threads=1))
        self.state = loop.set_up(self.run, name, self.method).state
        self.seconds: list[float] = []
        """processor seconds of each measured round"""
        self.passes = self.products = 0.0
        """passes of these rounds; and passes that count all products"""

    def play(self, t: int) -> None:
        """Play round ``t``, and measure it after the warm-up."""
        if t == WARM_UP:
            self.run.settings = replace(self.run.settings, eval_every=10**6)  # after the last round alone
        passes, multiplied, began = counted(self.run), MULTIPLICATIONS.count, time.process_time()
        self.state, _ = loop.play_round(self.run, self.name, self.method, self.state, t)
        if t >= WARM_UP:
            self.seconds.append(time.process_time() - began)
            passes, products = counted(self.run) - passes, MULTIPLICATIONS.count - multiplied
            self.passes += passes
            self.products += passes + products / of_a_pass(self.run)


def measure_in_turn(first: str, second: str, data: Any, settings: Settings) -> tuple[Measured, Measured]:
    """Play the rounds of two methods in turn and return both runs."""
    runs: list[Measured] = []
    try:
        for name in (first, second):
            runs.append(Measured(name, data, settings))
        for t in range(settings.rounds):
            for each in runs if t % 2 else reversed(runs):
                each.play(t)
    finally:
        for each in runs:
            each.run.engine.close()
    return runs[0], runs[1]


def counted(run: Any) -> float:
    """Return the passes of the engine up to now."""
    passes = run.engine.passes
    return BOTH * passes.trained + FORWARD * passes.predicted


if __name__ == "__main__":
    main()
