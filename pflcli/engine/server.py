"""Trains a model at the server, on samples that clients shared with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli import parameters
from pflcli.engine.engine import Engine
from pflcli.engine.local_sgd import LocalSGD
from pflcli.engine.numerics import intra_op
from pflcli.engine.task import Task
from pflcli.errors import ComputationError
from pflcli.parameters import Params


class ServerDiverged(ComputationError):
    """Training at the server ended with parameters that are not finite."""


def train(engine: Engine, rows: NDArray[np.int64], start: Params, plan: LocalSGD, key: tuple[Any, ...]) -> Params:
    """Train one model from ``start`` on rows of the federation, as a client with these samples would.

    ``key`` names the draw of minibatches. Raises ServerDiverged if parameters become non-finite.
    """
    out = {name: torch.empty_like(value)[None] for name, value in start.items()}
    engine.count_training(plan, np.asarray([len(rows)]))
    task = Task(engine.mode, np.zeros(1, np.int64), np.zeros(1, np.int64), plan, engine.seed, key, rows)
    with intra_op(1):
        list(engine.executor.run([task], start, out))
    if not parameters.finite(out).all():
        raise ServerDiverged(
            f"the server's parameters became non-finite ({' '.join(map(str, key))})", "a smaller --lr may help"
        )
    return parameters.pick(out, 0)
