"""A program that mypy and pyright check in strict mode: what the functions of pfl take and return is known."""

# pyright: strict

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import Federation, compare, partition, plot, report, simulate, table
from pflcli.method import Predictor, Run


class Plain:
    """FedAvg: clients predict with the global model."""

    KIND = "server"
    NEEDS = ()
    PAPER = "Plain"
    YEAR = 2026

    @dataclass(frozen=True)
    class Config:
        """No options."""

    @staticmethod
    def setup(run: Run) -> dict[str, Any]:
        """Return the state before the first round."""
        return {"global": run.initial_model()}

    @staticmethod
    def train_round(run: Run, state: Mapping[str, Any], t: int) -> dict[str, Any]:
        """Return the state after round ``t``."""
        cohort = run.cohort(t)
        sent = run.download(state["global"], cohort)
        return {"global": run.average(run.local_sgd(cohort, sent, t=t), sent)}

    @staticmethod
    def personalize(run: Run, state: Mapping[str, Any], clients: NDArray[np.int64]) -> Predictor:
        """Return the predictor of ``clients``."""
        return run.predictor(clients, state["global"])


def main(folder: Path) -> float:
    """Compare methods in memory and on disk; return the accuracy of one."""
    federation = Federation.from_dataset("writers", clients=6)
    mine = simulate(Plain, federation, model="logistic", rounds=1, quiet=True)
    results = {"plain": [mine], "local": [simulate("local", federation, model="logistic", rounds=1, quiet=True)]}
    text: str = table(results, baseline="plain").latex()
    picture: bytes = plot(results, baseline="plain").png()
    answers: list[str] = report(results, folder / "page.html").answers
    made = partition("writers", folder / "p", clients=6)
    stored = compare(made, folder / "c", methods="fedavg,local", model="logistic", rounds=1)
    kind: str = stored.kind
    print(kind, len(text), len(picture), answers, list(stored.table().columns))
    return mine.accuracy()


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
