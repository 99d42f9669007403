"""Throughput of a FedAvg round on Ray beside threads and Flower's Ray simulation, and bytes that come to the driver.

    python benchmarks/ray_workers.py [--model cnn] [--python flower=VENV/bin/python] [--rounds 3] [--repeats 2]
    python benchmarks/ray_workers.py --bytes [--clients 20,80,320]

Subjects take turns, as in ``rounds.py``: each is a process of its own that trains a warm-up round, not counted. All
train the same clients from the same weights. Printed are medians over turns: clients per second by the clock, and
processor seconds per round of all processes, which say more where others use the machine too. With ``--bytes`` one
round is trained per number of clients, on two workers, by a method whose models are summed on the workers and by one
that needs each model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

import numpy as np
from rounds import Subject, installed, say
from subjects import children, work

SUBJECTS = [
    Subject("threads", "ours", [(1, 1), (1, 2)]),
    Subject("ray", "ours", [(1, 1), (2, 1)], mode="ray"),
    Subject("flower", "flower", [(1, 1), (2, 1)], "flwr"),
]
"""With one and with two threads or workers."""


def throughput(model: str, rounds: int, repeats: int, flower: str) -> None:
    """Print a table of all subjects that are installed."""
    pythons = {"ours": sys.executable, "flower": flower}
    chosen = [subject for subject in SUBJECTS if installed(subject, pythons[subject.module])]
    cohort = work.SETTINGS[model].cohort
    measured: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for turn in range(repeats):
        for subject in chosen:
            for workers, threads in subject.arrangements:
                task = work.Task(model, rounds, workers, threads, False, "", subject.mode)
                facts = children.run(pythons[subject.module], subject.module, task).facts
                seconds = statistics.median(facts["seconds"])
                measured.setdefault((subject.name, workers * threads), []).append((seconds, facts["processor"]))
                say(f"  turn {turn + 1} {subject.name} {workers}x{threads} {seconds:.3f} s, {facts['processor']:.3f} s")
    print(f"{model}, {cohort} clients a round; load {os.getloadavg()[0]:.1f}\n")
    print("| subject | threads or workers | clients a second | processor s a round |\n|---|---:|---:|---:|")
    for (name, count), values in measured.items():
        seconds, processor = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"| {name} | {count} | {cohort / seconds:.1f} | {processor:.3f} |")


def driver_bytes(counts: list[int]) -> None:
    """Print the bytes that come to the process of pfl in one round of ``mlp``, by number of clients."""
    from pflcli.core import methods, parameters
    from pflcli.core.config import build
    from pflcli.core.engine.executors.ray_runtime import RayCluster
    from pflcli.core.engine.federation import Federation
    from pflcli.core.settings import Settings
    from pflcli.core.simulation.create_run import create_run

    print("| clients | bytes of a model | fedavg | apfl |\n|---:|---:|---:|---:|")
    for clients in counts:
        draw, samples = np.random.default_rng(0), 10
        x = draw.integers(0, 256, (clients * samples, 28, 28), dtype=np.uint8)
        offsets = np.concatenate([[0], np.cumsum(np.tile([samples, 0, 0], clients))])
        data = Federation.from_blocks(x, draw.integers(0, 10, len(x)), offsets, 10)
        came = []
        for name in ("fedavg", "apfl"):
            method = methods.load(name)
            settings = build(Settings, {"model": "mlp", "rounds": 1}, "")
            run = create_run(method, build(method.Config, {}, name), data, settings, 0, jobs=2, ray=RayCluster())
            engine = run.engine
            before = engine.executor.received_bytes  # type: ignore[attr-defined]
            method.train_round(run, method.setup(run), 0)
            came.append(engine.executor.received_bytes - before)  # type: ignore[attr-defined]
            engine.close()
        print(f"| {clients} | {parameters.size(run.init):,} | {came[0]:,} | {came[1]:,} |", flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn", choices=work.SETTINGS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="of the environment of Flower: flower=VENV/bin/python")
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--clients", default="20,80,320")
    args = parser.parse_args()
    if args.bytes:
        driver_bytes([int(count) for count in args.clients.split(",")])
    else:
        throughput(args.model, args.rounds, args.repeats, args.python.removeprefix("flower="))


if __name__ == "__main__":
    main()
