"""What a round costs with each method, by the engine's own counters: bytes by link, passes, and state.

    python benchmarks/round_costs.py [--carried]

A federation of 16 equal clients plays 8 rounds with half of them in each. Printed is the last round, per selected
client: bytes in models (1.00 is one model), passes in the client's training samples (1.0 is each of them once; the
losses of methods may pass a sample several times). `once` is what is sent before the first round, per client. State is
what lies at the server, and for each client that took part, in models. The numbers do not depend on the machine;
`docs/results/scale-rounds.csv` has them, and a test compares the two. `--carried` multiplies them by the numbers of a
large federation.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflcli.core import config, methods, parameters, registry
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD, Model
from pflcli.core.federation.run import Run
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.settings import Settings
from pflcli.core.simulation.create_run import create_run

CLIENTS, SPLITS, FEATURES, CLASSES, ROUNDS = 16, (20, 4, 4), 16, 10, 8
OPTIONS = {"ditto": {"lam": 1.0}, "fedham": {"warmup": 0}}
"""One value in place of a grid, and attention from the first round on."""


MODEL_BYTES, COHORT, POPULATION, LIMIT = 9.1e6, 100_000, 100_000_000, 1e12
"""A large federation: MobileNet-v2 for 10 classes, clients per round and in all; the limit of what fits, a terabyte."""


def main() -> None:
    """Print a row for every method that has rounds."""
    if "--carried" in sys.argv:
        carried()
        return
    print("| method | up | down | peer | once | trained | predicted | server | per client | of pairs |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for name in registry.names("methods"):
        if methods.load(name).has_rounds:
            print(f"| `{name}` | {' | '.join(row(name))} |")


def carried() -> None:
    """Print what a round of a large federation sends, and what all clients keep."""
    print("| method | TB by links per round | PB kept by clients | PB of pairs | clients at which pairs pass 1 TB |")
    print("|---|---:|---:|---:|---:|")
    for name in registry.names("methods"):
        method = methods.load(name)
        if not method.has_rounds:
            continue
        up, down, peer, *_, clients, _ = row(name)
        to_each = COHORT if method.PAIRS_SENT == "models" else float(down)
        terabytes = (float(up) + to_each + float(peer)) * COHORT * MODEL_BYTES / 1e12
        pair = MODEL_BYTES if method.PAIRS_SENT == "models" else method.PAIRS_KEPT
        together = COHORT if method.PAIRS_SENT == "models" else POPULATION
        pairs = f"{pair * together**2 / 1e15:,.2f}" if pair else ""
        breaks = f"{(LIMIT / pair) ** 0.5:,.0f}" if pair else ""
        kept_bytes = float(clients) * POPULATION * MODEL_BYTES / 1e15
        print(f"| `{name}` | {terabytes:,.1f} | {kept_bytes:,.2f} | {pairs} | {breaks} |")


class Counter:
    """Counts the samples that pass a model in local steps, also where a loss passes them several times."""

    def __init__(self, engine: Engine) -> None:
        self.samples = 0
        self._engine, self._before = engine, (engine.count_training, Model.__call__, Model.features)

    def __enter__(self) -> Counter:
        counting, call, features = self._before

        def count_training(plan: LocalSGD, sizes: Any) -> None:
            before = self._engine.passes.trained
            counting(plan, sizes)
            self.samples += (self._engine.passes.trained - before) * (plan.objective is None)

        def counted(function: Any) -> Any:
            def passed(model: Model, params: Any, x: Tensor) -> Tensor:
                self.samples += len(x)
                return function(model, params, x)

            return passed

        self._engine.count_training = count_training
        Model.__call__, Model.features = counted(call), counted(features)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.count_training, Model.__call__, Model.features = self._before


def row(name: str) -> list[str]:
    """Return the cells of a method."""
    method = methods.load(name)
    run = new_run(name)
    state = method.setup(run)
    model = parameters.size(run.init)
    once = sum(run.traffic.values()) / CLIENTS / model
    for t in range(ROUNDS):
        traffic, predicted = dict(run.traffic), run.engine.passes.predicted
        with Counter(run.engine) as counter:
            state = method.train_round(run, state, t)
    cohort = len(run.cohort(ROUNDS - 1))
    links = [f"{(run.traffic[link] - traffic[link]) / cohort / model:.2f}" for link in ("up", "down", "peer")]
    samples = cohort * SPLITS[0]
    server, clients = sizes(state)
    pairs = [word for word in (method.PAIRS_SENT, f"{method.PAIRS_KEPT:g} B kept" if method.PAIRS_KEPT else "") if word]
    return [
        *links,
        f"{once:.2f}",
        f"{counter.samples / samples:.1f}",
        f"{(run.engine.passes.predicted - predicted) / samples:.1f}",
        f"{server / model:.2f}",
        f"{clients / model:.2f}",
        ", ".join(pairs),
    ]


def new_run(name: str) -> Run:
    """Return a run on a federation of equal clients, of two clusters."""
    draw = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(np.tile(SPLITS, CLIENTS))])
    y = draw.integers(0, CLASSES, offsets[-1])
    x = (draw.normal(size=(len(y), FEATURES)) + np.eye(FEATURES)[y]).astype(np.float32)
    data = Federation.from_blocks(x, y, offsets, CLASSES, cluster=np.arange(CLIENTS) % 2)
    settings = config.build(Settings, {"model": "mlp", "rounds": ROUNDS, "participation": 0.5, "batch_size": 10}, "")
    code = methods.load(name)
    cfg = config.build(code.Config, OPTIONS.get(name, {}), name)
    return create_run(code, cfg, data, settings, 0, mode="loop")


def sizes(state: Mapping[str, Any]) -> tuple[float, float]:
    """Return the bytes of a state outside of tables, and those of its tables per client that has a row."""
    server, clients = 0.0, 0.0
    for value in state.values():
        if isinstance(value, ModelTable):
            clients += parameters.size(value.default) if len(value.written) else 0
        elif isinstance(value, Mapping):
            inner = sizes(value)
            server, clients = server + inner[0], clients + inner[1]
        elif isinstance(value, Tensor):
            server += value.numel() * value.element_size()
    return server, clients


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
