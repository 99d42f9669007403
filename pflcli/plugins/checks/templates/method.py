"""TITLE: FedAvg whose clients fine-tune the global model, pulled towards it.

Replace this text by what your method does, and by its source: authors, year, link, algorithm. A method is a function
of its state: it takes a state and returns a new one. It opens no file, prints nothing, and draws random numbers only by
``run.rng``. ``pfl check FILE`` tests the laws that every method satisfies. ``pfl verify claims.toml -o DIR`` judges
claims about it, such as this one in claims.toml::

    [experiments.writers]
    dataset = "writers"

    [claims.worst-tenth]
    says = "TITLE beats FedAvg+ for the worst tenth of the clients"
    on = ["writers"]
    method = "./FILE_NAME"
    metric = "bottom_decile"
    direction = "higher"
    against = ["fedavg-plus"]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Predictor, Run

KIND = "server"
"""The links that may carry bytes: ``server`` (up and down), ``peer``, or none for ``local`` and ``posthoc``."""
NEEDS = ()
"""The artifacts that it needs besides a partition: backbone, embeddings, datastore."""
PAPER = "TITLE"
"""The name in its paper: that of tables in LaTeX, and of ``pfl list methods``."""
YEAR = 2026
ADAPTS = True
"""Clients train after the last round. Methods with a personal model for each client have ``PERSONAL_MODELS`` instead:
the key of the state with a table of models (``run.table``)."""
# ``TRANSDUCTIVE = True`` declares that a prediction depends on other samples that the client predicts; tables mark it.
GRID = {"lam": (0.0, 0.1, 1.0)}
"""The values that ``pfl tune`` tries, by option."""


@dataclass(frozen=True)
class Config:
    """The options, each with its type, bounds, default and help: ``--set epochs=2 --set lam=0.5``."""

    epochs: Annotated[int, Ge(0)] = 1
    """fine-tune for this many local epochs"""
    lam: Annotated[float, Ge(0)] = 0.1
    """pull the fine-tuned model towards the global one with this weight"""


def setup(run: Run) -> dict[str, Any]:
    """Return the state before the first round: nested dicts of tensors and tables of models."""
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    """Return the state after round ``t``, from 0: the cohort trains the global model, and the server averages."""
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)  # counts the bytes sent down
    trained = run.local_sgd(cohort, downloaded, t=t)  # trains all clients of the cohort, many at a time
    return {"global": run.average(trained, downloaded)}  # counts the bytes sent up, and applies --upload


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    """Return the predictor of clients (n,). Nothing may be sent here."""
    start = state["global"]
    tuned = run.local_sgd(clients, start, t="tune", epochs=run.cfg.epochs, prox=(start, run.cfg.lam))
    return run.predictor(clients, tuned)
