"""Predicts with a network in training mode, so that BatchNorm takes the statistics of the test batch.

Breaks: each-sample-is-predicted-on-its-own
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "batch_statistics"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    network = copy.deepcopy(run.network).train()

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        parts = []
        for client in clients:
            x = run.federation.inputs(run.federation.block(int(client), split))
            if len(x) < 2:
                parts.append(run.predictor(np.asarray([client]), state["global"]).answer(split)["p"])
                continue
            with torch.no_grad():
                copied = {name: value.clone() for name, value in state["global"].items()}
                parts.append(run.task.predict(functional_call(network, copied, (x,))))
        return {"p": np.concatenate(parts)}

    return Predictor(answer, run.predicted_splits)
