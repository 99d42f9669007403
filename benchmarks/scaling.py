"""Seconds a round against clients in the cohort, samples a client, and hands (threads of one process, or processes).

    python benchmarks/scaling.py [--model cnn] [--repeats 3]

Prints medians, subjects in turn, and each figure's ratio to the first of its row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it

from pflcli.artifacts import client_blocks
from pflcli.core import models, parameters
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD

ROWS = {
    "cohort": [{"clients": clients} for clients in (5, 10, 20, 40)],
    "samples": [{"samples": samples} for samples in (32, 64, 128, 256)],
    "hands": [{"threads": 1}, {"threads": 2}, {"jobs": 1}, {"jobs": 2}],
}


def main() -> None:
    """Measure every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for label, settings in ROWS.items():
        subjects = [Subject(args.model, **setting) for setting in settings]
        times: list[list[float]] = [[] for _ in subjects]
        for repeat in range(args.repeats + 1):
            for subject, timings in zip(subjects, times, strict=True):
                timings.append(subject.round(repeat))
        medians = [statistics.median(timings[1:]) for timings in times]
        print(f"{args.model}, {label}:")
        for setting, seconds in zip(settings, medians, strict=True):
            print(f"  {setting!s:18} {seconds:8.3f} s  {seconds / medians[0]:6.2f} of the first")


class Subject:
    """One engine on one federation."""

    def __init__(self, model: str, clients: int = 10, samples: int = 128, threads: int = 2, jobs: int = 0) -> None:
        draw = np.random.default_rng(0)
        x, y = draw.integers(0, 256, (clients * samples, 28, 28), dtype=np.uint8), np.arange(clients * samples) % 62
        data = Federation.from_blocks(x, y, client_blocks.offsets(np.tile([samples, 0, 0], clients)), 62)
        net = models.create(model, data.in_shape, 62, 0)
        self.start, self.clients = parameters.copy_params(net), data.clients
        self.engine = Engine(net, data, seed=0, threads=threads, jobs=jobs)

    def round(self, t: int) -> float:
        """Return the seconds of one epoch of all clients and the mean of their models."""
        plan = LocalSGD(epochs=1, batch_size=32, lr=np.asarray([0.01]))
        began = time.perf_counter()
        mean = parameters.Mean()
        for part in self.engine.local_sgd(self.clients, self.start, plan, ("sgd", t)):
            mean.add(part.params, part.weights)
        mean.value()
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
