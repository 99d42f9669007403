"""Peak memory of a run against the number of clients, at a fixed cohort: it should not grow beyond the data itself.

    python benchmarks/memory.py [--clients 100,1000,3550,10000] [--model cnn] [--rounds 3]

Each run is a process of its own: clients of 26 samples of 28x28 or 32x32, 10 drawn a round, global model and a table of
personal models, of which the cohort's are read, trained and written back. Prints peak resident memory, the samples'
own bytes, and what is left beyond them against the smallest run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLES, COHORT = 26, 10


def main() -> None:
    """Measure every number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="100,1000,3550,10000")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args.one, args.model, args.rounds)))
        return
    print(f"{args.model}, {COHORT} clients a round of {SAMPLES} samples")
    first = None
    for clients in map(int, args.clients.split(",")):
        command = [sys.executable, __file__, "--one", str(clients), "--model", args.model, "--rounds", str(args.rounds)]
        peak, data, seconds = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        beyond = peak - data
        first = first or beyond
        print(
            f"{clients:6} clients: peak {peak / 1e6:8.1f} MB, samples {data / 1e6:7.1f} MB, beyond them "
            f"{beyond / 1e6:7.1f} MB = {beyond / first:.3f} of the first; {seconds:.3f} s a round"
        )


def run(clients: int, model: str, rounds: int) -> tuple[int, int, float]:
    """Return peak memory, bytes of samples and seconds of the last round."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import numpy as np
    import torch

    from pflcli.artifacts import client_blocks
    from pflcli.artifacts.row_file import RowFile
    from pflcli.core import models, parameters
    from pflcli.core.engine.engine import Engine
    from pflcli.core.engine.federation import Federation
    from pflcli.core.engine.local_sgd import LocalSGD
    from pflcli.core.parameters.model_table import ModelTable

    torch.set_num_threads(1)
    shape = (32, 32, 3) if model in ("mobilenet-v2", "resnet-18") else (28, 28)
    x = np.random.default_rng(0).integers(0, 256, (clients * SAMPLES, *shape), dtype=np.uint8)
    y = np.arange(clients * SAMPLES) % 10
    data = Federation.from_blocks(x, y, client_blocks.offsets(np.tile([SAMPLES, 0, 0], clients)), 10)
    del x  # channels first is a copy for colour images
    net = models.create(model, data.in_shape, 10, 0)
    engine = Engine(net, data, seed=0, threads=2)
    plan = LocalSGD(epochs=1, batch_size=32, lr=np.asarray([0.01]))
    state = parameters.copy_params(net)
    with tempfile.TemporaryDirectory() as folder:
        table = ModelTable(state, clients, RowFile(Path(folder, "rows"), 0, empty=True))
        for t in range(rounds):
            began = time.perf_counter()
            cohort = np.sort(np.random.default_rng(t).choice(clients, COHORT, replace=False))
            mean = parameters.Mean()
            for part in engine.local_sgd(cohort, state, plan, ("global", t)):
                mean.add(part.params, part.weights)
            for part in engine.local_sgd(cohort, table, plan, ("own", t)):
                table[part.clients] = part.params
            state = mean.value()
            table.keep()
            seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak, data.x.numel() * data.x.element_size() + data.y.numel() * 8, seconds


if __name__ == "__main__":
    main()
